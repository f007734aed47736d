//! TLS settings, from [`ConnectOptions`] to rustls, and channel binding.

use std::{io, path::Path, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
};
use sha2::{Digest, Sha256, Sha384, Sha512};
use x509_cert::{Certificate, der::Decode};

use crate::{
    ConnectOptions, Error,
    config::{RootCert, SslMode},
};

/// The rustls configuration for these options; reads the certificate files.
pub(crate) fn client_config(
    options: &ConnectOptions,
    mode: SslMode,
) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = Arc::new(roots(options.root_cert())?);
    let bad = |e: &dyn std::fmt::Display| Error::Config(format!("tls: {e}"));
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| bad(&e))?;
    let builder = if mode == SslMode::VerifyCa {
        let inner = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .build()
            .map_err(|e| bad(&e))?;
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyName { inner, provider }))
    } else {
        builder.with_root_certificates(roots)
    };
    let mut config = match options.client_cert() {
        Some((cert, key)) => {
            let key = PrivateKeyDer::from_pem_file(key)
                .map_err(|e| Error::Config(format!("sslkey {}: {e}", key.display())))?;
            builder
                .with_client_auth_cert(certificates("sslcert", cert)?, key)
                .map_err(|e| Error::Config(format!("sslcert {}: {e}", cert.display())))?
        }
        None => builder.with_no_client_auth(),
    };
    // PostgreSQL 17 and later insist on it with sslnegotiation=direct, others pass over it
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    Ok(config)
}

fn certificates(keyword: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let bad =
        |e: &dyn std::fmt::Display| Error::Config(format!("{keyword} {}: {e}", path.display()));
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| bad(&e))?;
    if certificates.is_empty() {
        return Err(bad(&"no certificate in the file"));
    }
    Ok(certificates)
}

fn roots(root: &RootCert) -> Result<RootCertStore, Error> {
    let mut store = RootCertStore::empty();
    match root {
        RootCert::File(path) => {
            for certificate in certificates("sslrootcert", path)? {
                store
                    .add(certificate)
                    .map_err(|e| Error::Config(format!("sslrootcert {}: {e}", path.display())))?;
            }
        }
        RootCert::System => {
            let found = rustls_native_certs::load_native_certs();
            for e in &found.errors {
                tracing::debug!(error = %e, "a certificate of the operating system is not usable");
            }
            store.add_parsable_certificates(found.certs);
            if store.is_empty() {
                return Err(Error::Config(
                    "the operating system has no certificate authorities: install ca-certificates, or set sslrootcert"
                        .into(),
                ));
            }
        }
    }
    Ok(store)
}

/// `verify-ca`: the chain is verified, the name is not.
#[derive(Debug)]
struct AnyName {
    inner: Arc<WebPkiServerVerifier>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        // the name is checked last, so this error says that the chain is good
        match self.inner.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        ) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Turns a host into the name that the certificate must carry.
pub(crate) fn server_name(host: &str) -> io::Result<ServerName<'static>> {
    ServerName::try_from(host.to_owned())
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, format!("{host}: {e}")))
}

/// `tls-server-end-point` (RFC 5929, section 4.1): the certificate, hashed as it was signed, but never with
/// MD5 or SHA-1. `None` for signatures that come without a hash of their own (Ed25519).
pub(crate) fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let parsed = Certificate::from_der(certificate).ok()?;
    match parsed.signature_algorithm.oid.to_string().as_str() {
        // md5, sha1 and sha256 with RSA; sha1 and sha256 with ECDSA
        "1.2.840.113549.1.1.4"
        | "1.2.840.113549.1.1.5"
        | "1.2.840.113549.1.1.11"
        | "1.2.840.10045.4.1"
        | "1.2.840.10045.4.3.2" => Some(Sha256::digest(certificate).to_vec()),
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" => {
            Some(Sha384::digest(certificate).to_vec())
        }
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" => {
            Some(Sha512::digest(certificate).to_vec())
        }
        _ => None,
    }
}
