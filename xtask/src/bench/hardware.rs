//! Descriptions of RDMA devices, without which a figure of real hardware is worth nothing.

use super::contest::words;

/// The words of a command that prints what [`describe`] reads, where the device is.
pub(super) fn command(devinfo: &str, device: &str) -> Vec<String> {
    // The type is that which the driver shows, if it does.
    const SCRIPT: &str = "echo \"hca_type: $(cat \"/sys/class/infiniband/$1/hca_type\" 2>/dev/null)\"; \
        exec \"$0\" -v -d \"$1\"";
    words(&["sh", "-c", SCRIPT, devinfo, device])
}

/// Describes a device, of which the example `devinfo` has printed these lines. `gid` is the index of the GID that
/// the programs use, unless they choose it.
///
/// The port is the first active one, which the programs use. Attributes that a device lacks are
/// left out.
pub(super) fn describe(lines: &[String], gid: Option<&str>) -> String {
    let pairs = lines.iter().filter_map(|line| line.split_once(':'));
    let pairs = pairs.map(|(name, value)| (name.trim(), value.trim()));
    let pairs: Vec<(&str, &str)> = pairs.filter(|(_, value)| !value.is_empty()).collect();
    let mut ports = pairs.split(|(name, _)| *name == "port");
    let device = ports.next().unwrap_or_default();
    let ports: Vec<_> = ports.collect();
    let is_active = |port: &&&[(&str, &str)]| {
        let state = find(port, "state").unwrap_or_default();
        state.starts_with("PORT_ACTIVE")
    };
    let active = ports.iter().position(|port| is_active(&port));
    let port = ports.get(active.unwrap_or(0)).copied().unwrap_or_default();
    let number = pairs.iter().filter(|(name, _)| *name == "port");
    let number = number.map(|(_, number)| *number).nth(active.unwrap_or(0));

    let mut parts = Vec::new();
    let mut add = |before: &str, value: Option<&str>, after: &str| {
        parts.extend(value.map(|value| format!("{before}{value}{after}")));
    };
    add("", find(device, "hca_type"), "");
    add("board ", find(device, "board_id"), "");
    add("firmware ", find(device, "fw_ver"), "");
    add("port ", number, "");
    add("", find(port, "link_layer"), "");
    add("", find(port, "active_rate"), "");
    // `4096 (5)`: the second is C's code.
    let mtu = find(port, "active_mtu").and_then(|mtu| mtu.split(' ').next());
    add("active MTU ", mtu, "");
    match gid {
        Some(index) => {
            let mut entries = port.iter().filter(|(name, _)| is_gid(name, index));
            // The GID, its type on Ethernet, and the network link: only the type says nothing of the site.
            let has_types = find(port, "link_layer") == Some("Ethernet");
            let entry = entries.next().filter(|_| has_types);
            let kind = entry.and_then(|(_, value)| value.split(", ").nth(1));
            let kind = kind.map(|kind| format!(" of {kind}"));
            add("GID ", Some(index), kind.as_deref().unwrap_or_default());
        }
        None => add("", Some("GID chosen by each program"), ""),
    }
    add("NUMA node ", find(device, "numa_node"), "");
    let name = find(device, "hca_id").unwrap_or("unknown device");
    format!("{name}: {}", parts.join(", "))
}

fn find<'a>(pairs: &[(&str, &'a str)], name: &str) -> Option<&'a str> {
    let found = pairs.iter().find(|(each, _)| *each == name);
    found.map(|(_, value)| *value)
}

/// Whether this is `GID[  3]`, of that index.
fn is_gid(name: &str, index: &str) -> bool {
    let between = name
        .strip_prefix("GID[")
        .and_then(|rest| rest.strip_suffix(']'));
    between.is_some_and(|it| it.trim() == index)
}

#[cfg(test)]
mod tests {
    use super::{command, describe};

    /// Output of `devinfo -v` for a device with two ports, shortened.
    const DEVICE: &str = "\
hca_type: MT4129
hca_id:\tmlx5_0
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t28.39.1002
\tboard_id:\t\t\tMT_0000000838
\tnuma_node:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_DOWN (1)
\t\t\tactive_mtu:\t\t1024 (3)
\t\t\tlink_layer:\t\tInfiniBand
\t\tport:\t2
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t4096 (5)
\t\t\tlink_layer:\t\tEthernet
\t\t\tactive_rate:\t\t400 Gbps
\t\t\tGID[  3]:\t\t::ffff:192.0.2.1, RoCE v2, eth0
\t\t\tGID[ 13]:\t\tfe80::1, RoCE v1, eth0
";

    fn described(text: &str, gid: Option<&str>) -> String {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        describe(&lines, gid)
    }

    #[test]
    fn a_device_is_described_with_its_active_port_and_the_gid() {
        assert_eq!(
            described(DEVICE, Some("3")),
            "mlx5_0: MT4129, board MT_0000000838, firmware 28.39.1002, port 2, Ethernet, 400 Gbps, \
             active MTU 4096, GID 3 of RoCE v2, NUMA node 1"
        );
        assert!(described(DEVICE, Some("13")).contains("GID 13 of RoCE v1, "));
        assert!(described(DEVICE, None).contains(", GID chosen by each program, "));
    }

    #[test]
    fn values_that_a_device_lacks_are_left_out() {
        let text = "hca_type: \nhca_id: rxe0\nport: 1\nstate: PORT_ACTIVE (4)\nGID[  0]: fe80::1, ib0\n\
                    link_layer: InfiniBand\n";
        assert_eq!(
            described(text, Some("0")),
            "rxe0: port 1, InfiniBand, GID 0"
        );
        assert_eq!(described("", Some("5")), "unknown device: GID 5");
    }

    #[test]
    fn the_device_is_a_word_of_its_own() {
        let words = command("/a b/devinfo", "{device}");
        assert_eq!(words[3..], ["/a b/devinfo", "{device}"]);
        assert!(!words[2].contains('\n'));
    }
}
