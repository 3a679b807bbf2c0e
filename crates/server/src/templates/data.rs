//! Checks the channel data of a template against the providers that could take the channel.

use postcommit_channel::model::{CHAIN, Provider, can_follow};
use postcommit_channel::template::Warning;
use postcommit_engine::store::EditError;
use serde_json::Value;

use crate::providers::recipe_of;

/// Refuses data without a field that the default provider of the channel needs, or a provider of its failover chain.
/// Another provider of the channel takes only deliveries that name it, so it causes a warning. So do fields that no
/// provider of the chain knows.
pub(super) fn check(providers: &[Provider], channel: &str, data: Option<&Value>) -> Result<Vec<Warning>, EditError> {
    let (chain, others) = takers(providers, channel);
    let check = |provider: &Provider| match recipe_of(provider) {
        Some(recipe) => recipe.check_template_data(&provider.settings, data),
        None => Ok(()),
    };
    for (place, provider) in chain.iter().enumerate() {
        check(provider).map_err(|problem| {
            let name = &provider.name;
            EditError::Refused(match place {
                0 => format!("data.{problem}"),
                _ => format!("data.{problem}; provider {name:?} needs it, which may take over by failover"),
            })
        })?;
    }
    let unmet = others.iter().filter_map(|provider| {
        let problem = check(provider).err()?;
        let name = &provider.name;
        Some(format!("deliveries that name provider {name:?} will be parked, because data.{problem}"))
    });
    let unknown = chain.first().into_iter().flat_map(|first| {
        let fields = unknown_to(first, data).unwrap_or_default().into_iter();
        let is_unknown = |field: &String| {
            chain.iter().all(|one| unknown_to(one, data).is_none_or(|unknown| unknown.contains(field)))
        };
        let said = |field| format!("provider {:?} does not know the field {field:?} and will not send it", first.name);
        fields.filter(is_unknown).map(said).collect::<Vec<_>>()
    });
    let warning = |message| Warning { part: "data".into(), line: None, column: None, message, placeholder: None };
    Ok(unmet.chain(unknown).map(warning).collect())
}

/// The fields that the provider does not send. `None` if its driver is no recipe.
fn unknown_to(provider: &Provider, data: Option<&Value>) -> Option<Vec<String>> {
    recipe_of(provider).map(|recipe| recipe.unknown_data(data))
}

/// The providers that could take a channel: the default provider with those to which it fails over, in their order, and
/// the other enabled providers of the channel, which take only deliveries that name them.
fn takers<'a>(providers: &'a [Provider], channel: &str) -> (Vec<&'a Provider>, Vec<&'a Provider>) {
    let default = |channel: &str| providers.iter().find(|one| one.is_default && one.channel == channel);
    let mut chain: Vec<&Provider> = default(channel).or_else(|| default("*")).into_iter().collect();
    while let Some(last) = chain.last() {
        let next = providers.iter().find(|one| Some(&one.name) == last.failover.as_ref() && one.enabled);
        match next.filter(|next| chain.len() < CHAIN && can_follow(&last.channel, &next.channel)) {
            Some(next) => chain.push(next),
            None => break,
        }
    }
    let is_other =
        |one: &&Provider| one.enabled && one.channel == channel && chain.iter().all(|taker| taker.id != one.id);
    let others = providers.iter().filter(is_other).collect();
    (chain, others)
}
