//! The environment's settings of the default network.

use std::env;
use std::sync::atomic::{AtomicU64, Ordering};

use soft_nic::Profile;

/// The profile, the seed, and how many cards there are: none if a setting cannot be read.
pub(super) fn default_network() -> (Profile, u64, usize) {
    const CARDS: usize = 2;
    let value = |name| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    match read(value("SOFT_VERBS_PROFILE"), value("SOFT_VERBS_SEED")) {
        Ok((profile, seed)) => (profile, seed, CARDS),
        Err(complaint) => {
            complain(&complaint);
            (Profile::default(), 0, 0)
        }
    }
}

#[expect(
    clippy::print_stderr,
    reason = "a program without a logger is to notice it, too"
)]
fn complain(complaint: &str) {
    eprintln!("soft-verbs has no device: {complaint}");
}

fn read(profile: Option<String>, seed: Option<String>) -> Result<(Profile, u64), String> {
    let profile = match profile.as_deref() {
        None | Some("default") => Profile::default(),
        Some("hostile") => Profile::hostile(),
        Some(other) => {
            return Err(format!(
                "SOFT_VERBS_PROFILE is `{other}`, not `default` or `hostile`"
            ));
        }
    };
    let seed = seed.map_or(Ok(0), |seed| {
        let error = || format!("SOFT_VERBS_SEED is `{seed}`, not a number");
        seed.parse().ok().ok_or_else(error)
    })?;
    Ok((profile, seed))
}

/// A number for a device, which no other has in this process.
pub(super) fn next_device() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::read;
    use soft_nic::Profile;

    #[test]
    fn settings_that_cannot_be_read_are_named() {
        let set = |text: &str| Some(text.to_owned());
        assert_eq!(read(None, None), Ok((Profile::default(), 0)));
        assert_eq!(
            read(set("hostile"), set("17")),
            Ok((Profile::hostile(), 17))
        );
        assert_eq!(
            read(set("mlx9"), None).unwrap_err(),
            "SOFT_VERBS_PROFILE is `mlx9`, not `default` or `hostile`"
        );
        assert_eq!(
            read(None, set("-1")).unwrap_err(),
            "SOFT_VERBS_SEED is `-1`, not a number"
        );
    }
}
