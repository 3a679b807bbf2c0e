use serde::{Deserialize, Serialize};

/// The class of an error. All providers share these classes; an error also has a code of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ErrorClass {
    /// The provider does not accept our credentials.
    AuthFailed,
    /// The provider accepts our credentials, but they do not allow this request.
    Forbidden,
    /// The provider asked us to send fewer messages, or to send later.
    RateLimited,
    /// No answer came in time.
    Timeout,
    /// The provider could not be reached, or the connection broke.
    Network,
    /// The provider failed to process the request.
    ServerError,
    /// The address is wrong, missing, not allowed or no longer exists.
    InvalidAddress,
    /// The provider refuses the content of the message.
    InvalidContent,
    /// The template is missing, fails, or is refused by the provider.
    TemplateRejected,
    /// Our account at the provider is unpaid, suspended or out of credit.
    Account,
    /// The configuration is wrong: the provider is missing, disabled, paused or misconfigured.
    Config,
    /// The error belongs to no other class, or its class is unknown.
    Unknown,
}

impl ErrorClass {
    /// All classes.
    pub const ALL: [Self; 12] = [
        Self::AuthFailed,
        Self::Forbidden,
        Self::RateLimited,
        Self::Timeout,
        Self::Network,
        Self::ServerError,
        Self::InvalidAddress,
        Self::InvalidContent,
        Self::TemplateRejected,
        Self::Account,
        Self::Config,
        Self::Unknown,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::AuthFailed => "auth_failed",
            Self::Forbidden => "forbidden",
            Self::RateLimited => "rate_limited",
            Self::Timeout => "timeout",
            Self::Network => "network",
            Self::ServerError => "server_error",
            Self::InvalidAddress => "invalid_address",
            Self::InvalidContent => "invalid_content",
            Self::TemplateRejected => "template_rejected",
            Self::Account => "account",
            Self::Config => "config",
            Self::Unknown => "unknown",
        }
    }

    /// The class that follows from an error code, if the driver gave none. `None` if the code is not a failure.
    pub fn of_code(code: &str) -> Option<Self> {
        Some(match code {
            "cancelled" | "expired" | "duplicate" | "opted_out" | "suppressed" | "quiet_hours" | "throttled"
            | "digested" | "failed_over" => {
                return None;
            }
            "timeout" | "connect_timeout" => Self::Timeout,
            "dns" | "connect" | "tls" | "tls_certificate" | "reset" | "closed" => Self::Network,
            "bad_answer" => Self::ServerError,
            "blocked_address" | "bad_url" | "bad_host" | "bad_user" | "bad_address" | "bad_recipient"
            | "no_address" | "no_recipient" | "not_on_channels" | "unknown_list" | "unknown_user" => {
                Self::InvalidAddress
            }
            "bad_header" | "missing_data" => Self::InvalidContent,
            "template_not_found" | "template_failed" | "template_limit" => Self::TemplateRejected,
            "host_held" => Self::RateLimited,
            "bad_provider" | "no_provider" | "unknown_provider" | "unknown_channel" | "provider_disabled"
            | "capture_journal" | "host_paused" => Self::Config,
            _ => Self::Unknown,
        })
    }

    /// The class of an HTTP answer that is not a success.
    pub fn of_http(status: u16) -> Self {
        match status {
            401 | 407 => Self::AuthFailed,
            402 => Self::Account,
            403 => Self::Forbidden,
            408 => Self::Timeout,
            429 => Self::RateLimited,
            // For an HTTP send the URL is the address. These statuses mean that it has moved, accepts no messages or no
            // longer exists.
            300..=399 | 404 | 405 | 410 | 421 => Self::InvalidAddress,
            400 | 406 | 411 | 413 | 415 | 422 | 431 => Self::InvalidContent,
            500..=599 => Self::ServerError,
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d2_every_code_and_every_http_status_has_a_class() {
        for (status, class) in [
            (301, "invalid_address"),
            (401, "auth_failed"),
            (402, "account"),
            (403, "forbidden"),
            (404, "invalid_address"),
            (408, "timeout"),
            (418, "unknown"),
            (422, "invalid_content"),
            (429, "rate_limited"),
            (503, "server_error"),
        ] {
            assert_eq!(ErrorClass::of_http(status).name(), class, "{status}");
        }
        for (code, class) in [
            ("timeout", "timeout"),
            ("dns", "network"),
            ("tls_certificate", "network"),
            ("blocked_address", "invalid_address"),
            ("no_provider", "config"),
            ("unknown_channel", "config"),
            ("lease_expired", "unknown"),
            ("a code of tomorrow", "unknown"),
        ] {
            assert_eq!(ErrorClass::of_code(code).map(ErrorClass::name), Some(class), "{code}");
        }
        assert_eq!((ErrorClass::of_code("cancelled"), ErrorClass::of_code("expired")), (None, None));
    }

    #[test]
    fn the_names_are_the_ones_of_the_json() {
        for class in ErrorClass::ALL {
            assert_eq!(serde_json::to_value(class).unwrap(), class.name());
        }
    }
}
