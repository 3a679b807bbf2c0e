//! A copy-on-write map with numbers as keys. A clone keeps its state. A change copies one of 256 parts instead of the
//! whole map.

use std::sync::Arc;

use crate::FastMap;

/// How many parts the map has. With 40,000 entries each part has about 160.
const PARTS: i32 = 256;

/// A copy-on-write map from numbers to values.
#[derive(Debug, Clone)]
pub struct CowMap<V>(Vec<Arc<FastMap<i32, V>>>);

impl<V> Default for CowMap<V> {
    fn default() -> Self {
        Self((0..PARTS).map(|_| Arc::default()).collect())
    }
}

impl<V: Clone> CowMap<V> {
    pub fn get(&self, id: i32) -> Option<&V> {
        self.0.get(place(id))?.get(&id)
    }

    pub fn insert(&mut self, id: i32, value: V) {
        if let Some(part) = self.0.get_mut(place(id)) {
            Arc::make_mut(part).insert(id, value);
        }
    }

    pub fn remove(&mut self, id: i32) -> Option<V> {
        // The entry is looked up first, so that nothing is copied if it is missing.
        self.get(id)?;
        self.0.get_mut(place(id)).and_then(|part| Arc::make_mut(part).remove(&id))
    }
}

fn place(id: i32) -> usize {
    usize::try_from(id.rem_euclid(PARTS)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_keeps_its_state_and_shares_unchanged_parts() {
        let mut shards = CowMap::default();
        (1..=1000).for_each(|id| shards.insert(id, id));
        let before = shards.clone();
        shards.insert(7, 70);
        assert_eq!((shards.remove(8), shards.remove(2000)), (Some(8), None));
        assert_eq!((before.get(7), before.get(8), shards.get(7), shards.get(8)), (Some(&7), Some(&8), Some(&70), None));
        let same = before.0.iter().zip(&shards.0).filter(|(old, new)| Arc::ptr_eq(old, new)).count();
        assert_eq!(same, before.0.len() - 2, "only the parts of 7 and 8 were copied");
    }
}
