//! The OpenAPI schema of a recipient. The SDK's own type has no OpenAPI schema.

use postcommit::limits;
use utoipa::openapi::schema::{AdditionalProperties, ObjectBuilder, OneOfBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// One recipient: an object in one of these forms.
pub struct To;

const ABOUT: &str = concat!(
    "A recipient: a user, a list or an address. Users and lists are looked up when the notification is \
     expanded. ",
    "The provider `in_app` is created when it is first needed. Every other channel needs a provider, such as one of \
     the driver `capture`",
);

impl ToSchema for To {
    fn name() -> std::borrow::Cow<'static, str> {
        "Recipient".into()
    }
}

impl PartialSchema for To {
    fn schema() -> RefOr<Schema> {
        let address = || text(limits::ADDRESS_BYTES);
        let url = || address().pattern(Some("^https?://"));
        let shapes = [
            object([(
                "user",
                text(limits::NAME_CHARS).description(Some("A user, by the id that the application uses")),
            )]),
            object([("list", address().description(Some("A named list")))]),
            object([("email", address().pattern(Some("^[^@]+@[^@]+$")).description(Some("An email address")))]),
            object([(
                "phone",
                text(16).pattern(Some(r"^\+[0-9]{7,15}$")).description(Some("A phone number in E.164 format")),
            )]),
            object([("slack", url().description(Some("A Slack incoming webhook. The URL is a secret")))]),
            object([("teams", url().description(Some("A Teams workflow webhook. The URL is a secret")))]),
            object([("webhook", url().description(Some("An endpoint that receives signed JSON")))]),
            object([(
                "push",
                address().pattern(Some(r"^\S+$")).description(Some("The token of an app on a device, or a topic of FCM")),
            )]),
            object([(
                "web_push",
                address().pattern(Some(r"^\{\S+\}$")).description(Some(
                    "The subscription of a browser as JSON text without spaces, as JSON.stringify writes it. It is a secret",
                )),
            )]),
            object([
                (
                    "provider",
                    text(limits::SHORT_NAME_CHARS)
                        .pattern(Some("^[A-Za-z0-9_.-]+$"))
                        .description(Some("The name of a provider")),
                ),
                ("address", address().description(Some("The recipient's address in the form that the provider expects, e.g. +491701234567 for SMS or a URL for a webhook"))),
            ]),
        ];
        let one = shapes.into_iter().fold(OneOfBuilder::new(), OneOfBuilder::item);
        one.description(Some(ABOUT)).into()
    }
}

fn text(most: usize) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).max_length(Some(most))
}

/// The schema of an object with exactly these fields.
fn object<const N: usize>(fields: [(&str, ObjectBuilder); N]) -> ObjectBuilder {
    fields.into_iter().fold(
        ObjectBuilder::new()
            .schema_type(Type::Object)
            .additional_properties(Some(AdditionalProperties::FreeForm(false))),
        |object, (name, field)| object.property(name, field).required(name),
    )
}
