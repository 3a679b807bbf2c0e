use std::collections::BTreeSet;

/// A permission of an API key or a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Enqueue notifications.
    Enqueue,
    /// Read all data of the tenant except its keys and the audit log.
    Read,
    /// Retry, discard, cancel, pause and resume. Includes `Read`.
    Operate,
    /// Change providers, templates, lists and users. Includes `Read`.
    Edit,
    /// Everything in the tenant of the key or session, including its keys and its audit log.
    Admin,
    /// `Admin` for every tenant, and management of the tenants themselves.
    Ops,
    /// For a remote site that submits its notifications. No other scope includes it, and it includes no other scope.
    Site,
}

impl Scope {
    pub const ALL: [Self; 7] =
        [Self::Enqueue, Self::Read, Self::Operate, Self::Edit, Self::Admin, Self::Ops, Self::Site];

    pub fn name(self) -> &'static str {
        match self {
            Self::Enqueue => "enqueue",
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Edit => "edit",
            Self::Admin => "admin",
            Self::Ops => "ops",
            Self::Site => "site",
        }
    }

    /// Finds the scope with this name.
    pub fn from_name(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|scope| scope.name() == name).ok_or_else(|| {
            format!("scopes: {name:?} is not known; allowed are {}", Self::ALL.map(Self::name).join(", "))
        })
    }

    /// Whether this scope allows everything that `other` allows.
    pub fn includes(self, other: Self) -> bool {
        use Scope::{Admin, Edit, Enqueue, Operate, Ops, Read};
        self == other
            || match self {
                Operate | Edit => other == Read,
                Admin => matches!(other, Enqueue | Read | Operate | Edit),
                Ops => matches!(other, Enqueue | Read | Operate | Edit | Admin),
                _ => false,
            }
    }
}

/// The scopes of a key or a session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scopes(BTreeSet<Scope>);

impl Scopes {
    /// Whether any of the scopes includes this one.
    pub fn allows(&self, scope: Scope) -> bool {
        self.0.iter().any(|own| own.includes(scope))
    }

    /// Whether this set allows everything that `others` allows. A key can only create keys that it covers.
    pub fn cover(&self, others: &Self) -> bool {
        others.0.iter().all(|other| self.allows(*other))
    }

    /// The names of the scopes, in order.
    pub fn names(&self) -> Vec<String> {
        self.0.iter().map(|scope| scope.name().to_owned()).collect()
    }

    /// Parses a set of scopes from their names.
    pub fn from_names<S: AsRef<str>>(names: &[S]) -> Result<Self, String> {
        if names.is_empty() {
            return Err(format!(
                "scopes: at least one is needed; allowed are {}",
                Scope::ALL.map(Scope::name).join(", ")
            ));
        }
        names.iter().map(|name| Scope::from_name(name.as_ref())).collect()
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table lists what each scope allows, in the order of `ALL`.
    #[test]
    fn each_scope_allows_itself_and_what_it_includes() {
        let table = [
            ("enqueue", "enqueue"),
            ("read", "read"),
            ("operate", "read operate"),
            ("edit", "read edit"),
            ("admin", "enqueue read operate edit admin"),
            ("ops", "enqueue read operate edit admin ops"),
            ("site", "site"),
        ];
        for (name, allowed) in table {
            let scopes = Scopes::from_names(&[name]).unwrap();
            let found: Vec<_> = Scope::ALL.into_iter().filter(|scope| scopes.allows(*scope)).map(Scope::name).collect();
            assert_eq!(found.join(" "), allowed, "{name}");
        }
    }

    #[test]
    fn a_set_allows_what_any_of_it_does_and_gives_no_more_away() {
        let both = Scopes::from_names(&["enqueue", "operate"]).unwrap();
        assert!(
            both.allows(Scope::Enqueue)
                && both.allows(Scope::Read)
                && !both.allows(Scope::Edit)
                && !both.allows(Scope::Site)
        );
        assert!(both.cover(&Scopes::from_names(&["read", "enqueue"]).unwrap()));
        assert!(!both.cover(&Scopes::from_names(&["admin"]).unwrap()));
        assert_eq!(both.names(), ["enqueue", "operate"]);
        assert!(!Scopes::default().allows(Scope::Read));
    }

    #[test]
    fn what_is_no_scope_is_refused_by_name() {
        assert_eq!(
            Scopes::from_names(&["read", "root"]).unwrap_err(),
            "scopes: \"root\" is not known; allowed are enqueue, read, operate, edit, admin, ops, site"
        );
        assert!(Scopes::from_names::<&str>(&[]).unwrap_err().contains("at least one"));
    }
}
