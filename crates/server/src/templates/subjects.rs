//! The subjects of a page of deliveries whose text comes from templates. They are rendered again for the page.

use std::collections::HashMap;
use std::time::Duration;

use postcommit_channel::clock;
use postcommit_channel::model::DeliveryKey;
use postcommit_channel::template::{Compiled, NO_PUBLIC_URL};
use postcommit_engine::db::DbError;
use postcommit_engine::store::{DeliveryRow, Store, SubjectData};

use super::preview::with_input;

/// The time after which no further subject of a page is rendered. A usual page needs a few milliseconds. The limit is
/// far above that, so that a busy machine shows the same subjects as an idle one.
const TIME: Duration = Duration::from_secs(1);

/// Replaces the titles of the deliveries with the subjects that their templates render. A delivery whose template has
/// no subject, or cannot be rendered in time, keeps its title. `tenant` owns the deliveries; `None` is any tenant.
pub async fn render_subjects(store: &Store, tenant: Option<i32>, rows: &mut [DeliveryRow]) -> Result<(), DbError> {
    if rows.iter().all(|row| row.template_version.is_none()) {
        return Ok(());
    }
    let tenants = match tenant {
        Some(_) => HashMap::new(),
        None => store.tenants().await?.into_iter().map(|(id, name)| (name, id)).collect(),
    };
    let key = |row: &DeliveryRow| {
        let tenant = tenant.or_else(|| tenants.get(&row.tenant).copied())?;
        Some(DeliveryKey { tenant, notification: row.notification_id, n: row.n })
    };
    let keys: Vec<DeliveryKey> = rows.iter().filter(|row| row.template_version.is_some()).filter_map(key).collect();
    let data = store.subject_data(&keys).await?;
    // A rendering that fails leaves the titles as they are. The page of the delivery says why.
    let subjects = tokio::task::spawn_blocking(move || subjects(&data)).await.unwrap_or_default();
    for row in rows {
        if let Some(subject) = key(row).and_then(|key| subjects.get(&key)) {
            row.title = Some(subject.clone());
        }
    }
    Ok(())
}

fn subjects(data: &SubjectData) -> HashMap<DeliveryKey, String> {
    let began = clock::monotonic();
    let (mut versions, mut subjects) = (HashMap::new(), HashMap::new());
    for (key, facts, version) in &data.deliveries {
        if began.elapsed() >= TIME {
            break;
        }
        let Some(note) = data.notifications.get(&key.notification) else { continue };
        let compiled = versions.entry(version).or_insert_with(|| Compiled::new(data.versions.get(version)?).ok());
        let Some(compiled) = compiled else { continue };
        let items = data.items.get(&key.notification).map(Vec::as_slice);
        let rendered = with_input((note, facts), items, Err(NO_PUBLIC_URL), |input| compiled.render(input));
        let Ok((content, _)) = rendered else {
            // A template without an end uses up its own limits each time, so the page tries it once.
            versions.insert(version, None);
            continue;
        };
        let subject = content.subject;
        subjects.extend(subject.filter(|subject| !subject.trim().is_empty()).map(|subject| (*key, subject)));
    }
    subjects
}
