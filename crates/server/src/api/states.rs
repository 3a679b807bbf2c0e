//! The states of a filter, in a query and in a body: names separated by commas.

use postcommit_channel::model::DeliveryState;
use serde::{Deserialize, Deserializer};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// The states of a filter of deliveries.
#[derive(Debug)]
pub struct States(Vec<DeliveryState>);

impl States {
    /// The names of the states.
    pub fn names(self) -> Vec<String> {
        self.0.into_iter().map(|state| state.name().to_owned()).collect()
    }
}

impl<'de> Deserialize<'de> for States {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let state = |name: &str| {
            let known = DeliveryState::ALL.into_iter().find(|state| state.name() == name);
            known.ok_or_else(|| {
                let all = DeliveryState::ALL.map(DeliveryState::name).join(", ");
                serde::de::Error::custom(format!("{name:?} is not a state; allowed are {all}, separated by commas"))
            })
        };
        String::deserialize(from)?.split(',').map(state).collect::<Result<_, _>>().map(Self)
    }
}

impl PartialSchema for States {
    fn schema() -> RefOr<Schema> {
        let one = DeliveryState::ALL.map(DeliveryState::name).join("|");
        let pattern = format!("^({one})(,({one}))*$");
        ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern)).examples(["parked"]).into()
    }
}

impl ToSchema for States {}
