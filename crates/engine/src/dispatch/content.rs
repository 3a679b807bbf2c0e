//! The index of all tenants' templates. Changes of templates and of providers share one sequence of numbers, and the
//! index applies those it has not read yet.

use std::sync::Arc;

use postcommit_channel::model::TenantContent;

use super::cow_map::CowMap;
use crate::store::ContentChanges;

/// The templates, mandatory event types and settings of all tenants that have any.
#[derive(Clone, Default)]
pub struct ContentIndex(CowMap<Arc<TenantContent>>);

impl ContentIndex {
    pub fn get(&self, tenant: i32) -> Option<&TenantContent> {
        self.0.get(tenant).map(|content| &**content)
    }

    pub fn apply(&mut self, changes: ContentChanges) {
        for (tenant, entry, is_used) in changes.templates {
            self.change(tenant, |content| if is_used { content.put(entry) } else { content.remove(&entry.id) });
        }
        for (tenant, event_type, mandatory, quiet_rule) in changes.event_types {
            self.change(tenant, |content| {
                content.set_mandatory(&event_type, mandatory);
                content.set_quiet_rule(&event_type, quiet_rule);
            });
        }
        for (tenant, language, time_zone) in changes.defaults {
            self.change(tenant, |content| (content.language, content.time_zone) = (language, time_zone));
        }
        for tenant in changes.guarded {
            self.change(tenant, |content| content.is_guarded = true);
        }
    }

    /// Changes the entry of one tenant. If the entry is shared with an older index, the change copies it.
    fn change(&mut self, tenant: i32, change: impl FnOnce(&mut TenantContent)) {
        let mut content = self.0.remove(tenant).unwrap_or_default();
        change(Arc::make_mut(&mut content));
        self.0.insert(tenant, content);
    }
}
