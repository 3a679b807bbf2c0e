//! The addresses that Postcommit never connects to unless the operator allows them.
//! Every address that is not clearly public is forbidden. A tenant may choose a URL, and must not use it to reach this
//! machine's own services, its private network or the metadata service of a cloud.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::LazyLock;

use ipnet::IpNet;

/// The forbidden ranges, each with the reason that the operator sees.
/// The IPv6 transition ranges contain IPv4 addresses. They are forbidden as a whole and not decoded. No public service
/// needs them, and a decoder could have errors.
const RANGES: &[(&str, &str)] = &[
    ("0.0.0.0/8", "this network"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "carrier-grade NAT"),
    ("127.0.0.0/8", "loopback"),
    ("168.63.129.16/32", "cloud metadata"),
    ("169.254.0.0/16", "link-local or cloud metadata"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "protocol assignments or cloud metadata"),
    ("192.0.2.0/24", "documentation"),
    ("192.88.99.0/24", "6to4 relay"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "benchmarking"),
    ("198.51.100.0/24", "documentation"),
    ("203.0.113.0/24", "documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved or broadcast"),
    ("::/128", "unspecified"),
    ("::1/128", "loopback"),
    ("::/96", "IPv4-compatible"),
    ("::ffff:0:0:0/96", "IPv4-translated"),
    ("64:ff9b::/96", "NAT64"),
    ("64:ff9b:1::/48", "local NAT64"),
    ("100::/64", "discard"),
    ("2001::/32", "Teredo"),
    ("2001::/23", "protocol assignments"),
    ("2001:db8::/32", "documentation"),
    ("2002::/16", "6to4"),
    ("3fff::/20", "documentation"),
    ("5f00::/16", "segment routing"),
    ("fc00::/7", "unique local"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "site-local"),
    ("ff00::/8", "multicast"),
];

static FORBIDDEN: LazyLock<Vec<(IpNet, &str)>> = LazyLock::new(|| {
    let parsed = |&(net, reason): &(&str, _)| (net.parse().expect("RANGES holds networks"), reason);
    RANGES.iter().map(parsed).collect()
});

/// The reason why connections to `ip` are forbidden, or `None` for a public address.
/// An IPv4-mapped IPv6 address is treated as the IPv4 address that it contains.
pub fn forbidden(ip: IpAddr) -> Option<&'static str> {
    let ip = ip.to_canonical();
    let listed = FORBIDDEN.iter().find(|(net, _)| net.contains(&ip));
    listed.map(|&(_, reason)| reason).or_else(|| match ip {
        IpAddr::V4(_) => None,
        IpAddr::V6(ip) => forbidden_shape(ip),
    })
}

/// The rules for IPv6 addresses that prefixes cannot express.
fn forbidden_shape(ip: Ipv6Addr) -> Option<&'static str> {
    let [first, _, _, _, fifth, sixth, ..] = ip.segments();
    if matches!(fifth, 0 | 0x0200) && sixth == 0x5efe {
        return Some("ISATAP");
    }
    // Only 2000::/3 is assigned for public use. The rest is unassigned, but some private networks use parts of it.
    (first & 0xe000 != 0x2000).then_some("not global unicast")
}

/// The address filter: the ranges of [`forbidden`] except those that the operator allows.
#[derive(Debug)]
pub(super) struct Filter {
    allow: Vec<IpNet>,
    /// Whether public addresses are allowed.
    public: bool,
}

impl Filter {
    pub(super) fn new(allow: &[IpNet], public: bool) -> Self {
        Self { allow: allow.to_vec(), public }
    }

    /// The reason why connections to `ip` are forbidden. A range in `allow` takes precedence over every forbidden
    /// range.
    pub(super) fn blocked(&self, ip: IpAddr) -> Option<&'static str> {
        let ip = ip.to_canonical();
        let opened = self.allow.iter().any(|net| net.contains(&ip));
        match forbidden(ip) {
            _ if opened => None,
            None if !self.public => Some("public, and egress.public is false"),
            reason => reason,
        }
    }

    /// The allowed addresses, in canonical form and in the resolver's order.
    /// # Errors
    /// The reason why the first address is forbidden, if no address is allowed.
    pub(super) fn keep(&self, found: &[IpAddr]) -> Result<Vec<IpAddr>, &'static str> {
        let mut kept: Vec<IpAddr> = Vec::with_capacity(found.len());
        let mut reason = None;
        for ip in found.iter().map(IpAddr::to_canonical) {
            match self.blocked(ip) {
                Some(why) => reason = reason.or(Some(why)),
                None if kept.contains(&ip) => {}
                None => kept.push(ip),
            }
        }
        match reason {
            Some(why) if kept.is_empty() => Err(why),
            _ => Ok(kept),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(ip: &str) -> Option<&'static str> {
        forbidden(ip.parse().unwrap())
    }

    #[test]
    fn both_ends_of_every_range_are_forbidden() {
        for (net, _) in FORBIDDEN.iter() {
            assert!(forbidden(net.network()).is_some(), "{net}");
            assert!(forbidden(net.broadcast()).is_some(), "{net}");
        }
    }

    #[test]
    fn the_neighbours_of_ranges_are_public() {
        let public = "9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 168.63.129.15 168.63.129.17 \
            169.253.255.255 172.15.255.255 172.32.0.0 192.0.1.0 198.17.255.255 198.20.0.0 223.255.255.255 \
            2001:200::1 2001:db7::1 2001:db9::1 2003::1 3ffe:ffff::1 2606:4700::1";
        for ip in public.split_whitespace() {
            assert_eq!(reason(ip), None, "{ip}");
        }
    }

    #[test]
    fn the_reason_names_the_range() {
        assert_eq!(reason("2001:0:a9fe:a9fe::1"), Some("Teredo"));
        assert_eq!(reason("::ffff:127.0.0.1"), Some("loopback"));
        assert_eq!(reason("2606:4700::200:5efe:7f00:1"), Some("ISATAP"));
        assert_eq!(reason("200::1"), Some("not global unicast"));
    }

    #[test]
    fn without_public_addresses_only_the_opened_range_is_left() {
        let filter = Filter::new(&["10.1.0.0/16".parse().unwrap()], false);
        let blocked = |ip: &str| filter.blocked(ip.parse().unwrap());
        assert_eq!((blocked("10.1.2.3"), blocked("10.2.0.1")), (None, Some("private")));
        assert_eq!(blocked("11.0.0.0"), Some("public, and egress.public is false"));
        assert_eq!(blocked("2606:4700::1"), Some("public, and egress.public is false"));
    }

    #[test]
    fn an_opened_range_opens_nothing_else() {
        let filter = Filter::new(&["10.1.0.0/16".parse().unwrap()], true);
        let blocked = |ip: &str| filter.blocked(ip.parse().unwrap());
        assert_eq!(blocked("10.1.2.3"), None);
        assert_eq!(blocked("::ffff:10.1.2.3"), None);
        assert_eq!(blocked("10.2.0.1"), Some("private"));
        assert_eq!(blocked("64:ff9b::a01:203"), Some("NAT64"));
    }
}
