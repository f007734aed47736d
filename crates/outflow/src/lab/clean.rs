//! `outflow lab stop` and `outflow lab clean`: the end of a lab.

use super::broker;
use super::folder::{Lab, Place};
use super::lesson::Lesson;

/// Ends the lab's own Redis; its data stays.
pub(super) async fn stop(lab: &Lab) -> anyhow::Result<Lesson> {
    let lesson = Lesson::new("stop", "end the lab's own Redis", "");
    if let Some(Place::Url { url, .. }) = lab.place() {
        let said = format!("this lab uses {url}, which is not its own: nothing was ended");
        return Ok(lesson.said(said).fact("stopped", false));
    }
    let stopped = broker::stop(lab).await?;
    Ok(lesson
        .said(match stopped {
            true => "its Redis has ended; the next step starts it again with its data",
            false => "its Redis does not run",
        })
        .fact("stopped", stopped))
}

/// Removes everything that the lab has made: its Redis or its keys, its files, its folder.
pub(super) async fn clean(mut lab: Lab) -> anyhow::Result<Lesson> {
    let mut lesson = Lesson::new("clean", "remove the lab", "");
    match lab.place() {
        Some(Place::Url { url, .. }) => {
            let said = format!("removed its keys from {url}");
            lab.broker().await?.remove_keys().await?;
            lesson = lesson.said(said);
        }
        Some(Place::Own) | None => {
            if broker::stop(&lab).await? {
                lesson = lesson.said("ended its Redis");
            }
        }
    }
    let dir = lab.dir().display().to_string();
    let gone = lab.remove()?;
    Ok(lesson
        .said(match gone {
            true => format!("removed {dir}"),
            false => format!("removed its files; {dir} holds others, which stay"),
        })
        .fact("dir", dir)
        .fact("removed", gone))
}
