//! Password authentication: SCRAM-SHA-256 with and without channel binding, md5, clear text.
//!
//! Source: PostgreSQL documentation, "Message Flow: Start-up" and "SASL Authentication".

use bytes::BytesMut;
use postgres_protocol::{
    authentication::{
        md5_hash,
        sasl::{self, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256},
    },
    message::frontend,
};
use tokio_postgres::config::ChannelBinding;

use crate::{
    ConnectOptions, Error,
    config::Target,
    reader::Reader,
    startup::notice,
    tls,
    wire::{Answer, Wire, short},
};

const DURING: &str = "authentication";

/// Ends with AuthenticationOk.
pub(super) async fn authenticate(
    wire: &mut Wire,
    options: &ConnectOptions,
    target: &Target,
) -> Result<(), Error> {
    let refused = |reason: String| Error::Authentication { host: target.to_string(), reason };
    let mut out = BytesMut::new();
    // channel binding counts only if this conversation really used it
    let mut bound = false;
    loop {
        let (method, body) = request(wire).await?;
        let password = || {
            options.password_for(target).ok_or_else(|| {
                refused(format!(
                    "the server wants a password for {:?}: set it in the connection string, PGPASSWORD or \
                     a password file",
                    options.user()
                ))
            })
        };
        let must_bind =
            options.as_tokio_postgres().get_channel_binding() == ChannelBinding::Require;
        out.clear();
        match method {
            0 if must_bind && !bound => {
                return Err(refused(
                    "channel_binding=require, but the server did not use it".into(),
                ));
            }
            0 => return Ok(()),
            // before the password would be given to a server that has proved nothing
            3 | 5 if must_bind => {
                return Err(refused(
                    "channel_binding=require, but the server asks for a plain password".into(),
                ));
            }
            3 => frontend::password_message(&password()?, &mut out)
                .map_err(|_| refused("the password contains a zero byte".into()))?,
            5 => {
                let salt = Reader::new(&body).take(4).map_err(short(DURING))?;
                let salt = salt.try_into().unwrap_or_default();
                let hash = md5_hash(options.user().as_bytes(), &password()?, salt);
                frontend::password_message(hash.as_bytes(), &mut out)
                    .map_err(|_| refused("the password contains a zero byte".into()))?;
            }
            10 => {
                bound = scram(wire, options, &body, &password()?, &refused).await?;
                continue;
            }
            other => {
                return Err(refused(format!(
                    "the server asks for method {other}; scram-sha-256, md5, password, trust and cert are \
                     possible (pg_hba.conf)"
                )));
            }
        }
        wire.send(&out).await?;
    }
}

/// Method and data of the next authentication request.
async fn request(wire: &mut Wire) -> Result<(u32, bytes::Bytes), Error> {
    loop {
        let answer = wire.next().await?;
        match answer.tag {
            b'R' => {
                let method = Reader::new(&answer.body).u32().map_err(short(DURING))?;
                return Ok((method, answer.body.slice(4..)));
            }
            b'N' => notice(&answer.body),
            _ => return Err(unexpected(&answer)),
        }
    }
}

fn unexpected(answer: &Answer) -> Error {
    answer.unexpected(DURING)
}

/// Returns whether the channel was bound.
async fn scram(
    wire: &mut Wire,
    options: &ConnectOptions,
    mechanisms: &[u8],
    password: &[u8],
    refused: &(dyn Fn(String) -> Error + Sync),
) -> Result<bool, Error> {
    let (mut plain, mut plus) = (false, false);
    let mut reader = Reader::new(mechanisms);
    while let Ok(name @ [_, ..]) = reader.cstr() {
        plain |= name == SCRAM_SHA_256.as_bytes();
        plus |= name == SCRAM_SHA_256_PLUS.as_bytes();
    }
    let binding = options.as_tokio_postgres().get_channel_binding();
    let end_point = wire
        .socket
        .peer_certificate()
        .and_then(tls::end_point)
        .filter(|_| binding != ChannelBinding::Disable);
    let (channel, mechanism) = match end_point {
        Some(end_point) if plus => {
            (sasl::ChannelBinding::tls_server_end_point(end_point), SCRAM_SHA_256_PLUS)
        }
        // says "I could have": a man in the middle who removed the offer is found out
        Some(_) => (sasl::ChannelBinding::unrequested(), SCRAM_SHA_256),
        None => (sasl::ChannelBinding::unsupported(), SCRAM_SHA_256),
    };
    let bound = mechanism == SCRAM_SHA_256_PLUS;
    if !bound && !plain {
        return Err(refused("the server offers no scram-sha-256".into()));
    }
    if !bound && binding == ChannelBinding::Require {
        return Err(refused(
            "channel_binding=require, but tls or the server's certificate does not allow it".into(),
        ));
    }
    let failed = |e: std::io::Error| refused(format!("scram-sha-256: {e}"));

    let mut scram = ScramSha256::new(password, channel);
    let mut out = BytesMut::new();
    frontend::sasl_initial_response(mechanism, scram.message(), &mut out).map_err(failed)?;
    wire.send(&out).await?;
    let data = expect(wire, 11).await?;
    scram.update(&data).map_err(failed)?;
    out.clear();
    frontend::sasl_response(scram.message(), &mut out).map_err(failed)?;
    wire.send(&out).await?;
    let data = expect(wire, 12).await?;
    // proves that the server knows the password too
    scram.finish(&data).map_err(failed)?;
    Ok(bound)
}

async fn expect(wire: &mut Wire, method: u32) -> Result<bytes::Bytes, Error> {
    match request(wire).await? {
        (found, data) if found == method => Ok(data),
        (found, _) => {
            Err(Error::Protocol(format!("authentication step {found} where {method} was due")))
        }
    }
}
