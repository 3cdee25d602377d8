//! The environment's settings of the default network.

use std::env;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use soft_nic::Profile;

use super::udp::{Address, Place, Udp, VARIABLE};
use super::{Clock, Host, Network, leaving};
use crate::shared;

const NAME: &str = "default";

/// The host of the default network, without cards if a setting cannot be followed.
pub(super) fn default_host() -> Host {
    let value = |name| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let values = ["SOFT_VERBS_PROFILE", "SOFT_VERBS_SEED", VARIABLE].map(value);
    read(values).and_then(make).unwrap_or_else(|complaint| {
        complain(&complaint);
        let network = Network::new(None, Clock::real(), 0);
        Host::add(&network, NAME, 0, [])
    })
}

fn make(settings: Settings) -> Result<Host, String> {
    const CARDS: usize = 2;
    let profile = settings.profile;
    let seed = match (settings.seed, &settings.place) {
        (Some(seed), _) => seed,
        (None, Place::Process) => 0,
        // Processes differ.
        _ => RandomState::new().hash_one(0),
    };
    Ok(match Udp::bind(&settings.place, seed)? {
        None => {
            let cards = (0..CARDS).map(|place| (next_device(), Host::gids(place), profile.clone()));
            Host::add(&Network::new(None, Clock::real(), seed), NAME, 0, cards)
        }
        Some((udp, addresses)) => {
            let network = Network::new(Some(udp), Clock::real(), seed);
            leaving::at_exit(&network);
            let card = |it: Address| (it.number(), vec![it.gid(); 2], it.limit(&profile));
            Host::add(&network, NAME, 0, addresses.into_iter().map(card))
        }
    })
}

#[expect(
    clippy::print_stderr,
    reason = "a program without a logger is to notice it, too"
)]
fn complain(complaint: &str) {
    eprintln!("soft-verbs has no device: {complaint}");
}

#[derive(Debug, PartialEq)]
struct Settings {
    profile: Profile,
    seed: Option<u64>,
    place: Place,
}

fn read([profile, seed, place]: [Option<String>; 3]) -> Result<Settings, String> {
    let profile = match profile.as_deref() {
        None | Some("default") => Profile::default(),
        Some("hostile") => Profile::hostile(),
        Some(other) => {
            return Err(format!(
                "SOFT_VERBS_PROFILE is `{other}`, not `default` or `hostile`"
            ));
        }
    };
    let seed = seed.map(|seed| {
        let error = || format!("SOFT_VERBS_SEED is `{seed}`, not a number");
        seed.parse().ok().ok_or_else(error)
    });
    let place = match place {
        Some(place) => Place::read(&place)?,
        None if shared::is_shared() => Place::Loopback,
        None => Place::Process,
    };
    Ok(Settings {
        profile,
        seed: seed.transpose()?,
        place,
    })
}

/// A number for a device, which no other has in this process.
pub(super) fn next_device() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::{Place, Settings, read};
    use soft_nic::Profile;

    #[test]
    fn settings_that_cannot_be_read_are_named() {
        let set = |text: &str| Some(text.to_owned());
        let unset = Settings {
            profile: Profile::default(),
            seed: None,
            place: Place::Process,
        };
        assert_eq!(read([None, None, None]), Ok(unset));
        let all = Settings {
            profile: Profile::hostile(),
            seed: Some(17),
            place: Place::Loopback,
        };
        assert_eq!(read([set("hostile"), set("17"), set("loopback")]), Ok(all));
        assert_eq!(
            read([set("mlx9"), None, None]).unwrap_err(),
            "SOFT_VERBS_PROFILE is `mlx9`, not `default` or `hostile`"
        );
        assert_eq!(
            read([None, set("-1"), None]).unwrap_err(),
            "SOFT_VERBS_SEED is `-1`, not a number"
        );
        let complaint = read([None, None, set("eth0")]).unwrap_err();
        assert!(
            complaint.starts_with("SOFT_VERBS_ADDRESS is `eth0`"),
            "{complaint}"
        );
    }
}
