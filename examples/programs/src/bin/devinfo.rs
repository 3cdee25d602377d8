//! Lists RDMA devices with their attributes, ports and GIDs, as `ibv_devinfo` does.
//!
//! Read first: `show`, which opens a device and asks for its attributes, ports and GIDs.

use std::fs;
use std::process::ExitCode;

use clap::Parser;
use programs::{Context as _, Failure, Listing, names, run, say};
use verbs_core::codes::LinkLayer;
use verbs_core::device::{DeviceAttr, DeviceAttrEx, PortAttr, TransportType};
use verbs_core::{Context, Device, Result};

/// List the RDMA devices, their ports and GIDs, like `ibv_devinfo`
#[derive(Debug, Parser)]
#[command(name = "devinfo", after_help = EXAMPLES)]
struct Options {
    /// Show this device only [default: all]
    #[arg(short = 'd', long, alias = "device", value_name = "NAME")]
    ib_dev: Option<String>,

    /// Show this port only [default: all]
    #[arg(short = 'i', long, value_name = "PORT", value_parser = clap::value_parser!(u8).range(1..))]
    ib_port: Option<u8>,

    /// Show the names of the devices, and nothing else
    #[arg(short, long)]
    list: bool,

    /// Show every attribute
    #[arg(short, long)]
    verbose: bool,
}

const EXAMPLES: &str = "\
Examples:
  devinfo             all devices, in short, with their GIDs
  devinfo -l          their names
  devinfo -v -d rxe0  all attributes of rxe0";

fn main() -> ExitCode {
    run(devinfo)
}

fn devinfo(options: &Options) -> Result<(), Failure> {
    let devices = match &options.ib_dev {
        Some(name) => vec![Device::by_name(name)?],
        None => Device::list()?,
    };
    if devices.is_empty() {
        // Says that there is none, and what to do.
        drop(Context::first_active()?);
    }
    if options.list {
        let s = if devices.len() == 1 { "" } else { "s" };
        let mut list = Listing::default();
        list.line(0, format_args!("{} HCA{s} found:", devices.len()));
        devices
            .iter()
            .for_each(|device| list.line(1, device.name()));
        list.line(0, "");
        return say(list.as_str());
    }
    // One that cannot be shown does not hide the others.
    let mut ended = Ok(());
    for device in devices {
        let shown = show(&device, options).context(|| device.name().to_owned());
        match shown {
            Ok(text) => say(text.as_str())?,
            Err(failure) => ended = ended.and(Err(failure)),
        }
    }
    ended
}

fn show(device: &Device, options: &Options) -> Result<Listing> {
    let context = device.open()?;
    let attr_ex = context.query_device_ex()?;
    let attr = attr_ex.base();
    let mut list = Listing::default();
    list.line(0, format_args!("hca_id:\t{}", device.name()));
    identity(&mut list, device, &attr);
    place(&mut list, device);
    if options.verbose {
        limits(&mut list, &attr);
        capabilities(&mut list, &attr_ex);
        entry(&mut list, "num_comp_vectors", context.num_comp_vectors());
    }
    let ports = match options.ib_port {
        Some(port) => port..=port,
        None => context.ports()?,
    };
    for port_num in ports {
        let port = context.query_port(port_num)?;
        list.line(2, format_args!("port:\t{port_num}"));
        link(&mut list, &port);
        if options.verbose {
            details(&mut list, device, &port);
        }
        gids(&mut list, &context, port_num, &port)?;
        list.line(0, "");
    }
    Ok(list)
}

/// An attribute of the device.
fn entry(list: &mut Listing, label: &str, value: impl std::fmt::Display) {
    list.entry(1, 40, label, value);
}

fn identity(list: &mut Listing, device: &Device, attr: &DeviceAttr) {
    let transport = device.transport_type();
    let known = transport
        .name()
        .filter(|_| transport != TransportType::UNKNOWN);
    let name = names::known(known.map(|_| transport), "invalid transport");
    let code = transport.as_raw();
    entry(list, "transport", format_args!("{name} ({code})"));
    if !attr.fw_ver().is_empty() {
        entry(list, "fw_ver", attr.fw_ver());
    }
    entry(list, "node_guid", attr.node_guid());
    entry(list, "sys_image_guid", attr.sys_image_guid());
    entry(
        list,
        "vendor_id",
        format_args!("0x{:04x}", attr.vendor_id()),
    );
    entry(list, "vendor_part_id", attr.vendor_part_id());
    entry(list, "hw_ver", format_args!("0x{:X}", attr.hw_ver()));
    let board = fs::read_to_string(format!("/sys/class/infiniband/{}/board_id", device.name()));
    if let Some(board) = board.ok().filter(|board| !board.trim().is_empty()) {
        entry(list, "board_id", board.trim());
    }
    entry(list, "phys_port_cnt", attr.phys_port_cnt());
}

/// Where in the machine it is; a virtual device is nowhere. C's program does not show this.
fn place(list: &mut Listing, device: &Device) {
    if let Some(address) = device.pci_address() {
        entry(list, "pci_address", address);
    }
    if let Some(node) = device.numa_node() {
        entry(list, "numa_node", node);
    }
    let cpus = device.near_cpus();
    if !cpus.is_empty() {
        entry(list, "near_cpus", names::ranges(&cpus));
    }
}

fn limits(list: &mut Listing, attr: &DeviceAttr) {
    entry(
        list,
        "max_mr_size",
        format_args!("0x{:x}", attr.max_mr_size()),
    );
    entry(
        list,
        "page_size_cap",
        format_args!("0x{:x}", attr.page_size_cap()),
    );
    entry(list, "max_qp", attr.max_qp());
    entry(list, "max_qp_wr", attr.max_qp_wr());
    let flags = attr.device_cap_flags().bits();
    entry(list, "device_cap_flags", format_args!("0x{flags:08x}"));
    list.flags(flags.into(), names::DEVICE_CAPS);
    entry(list, "max_sge", attr.max_sge());
    entry(list, "max_sge_rd", attr.max_sge_rd());
    entry(list, "max_cq", attr.max_cq());
    entry(list, "max_cqe", attr.max_cqe());
    entry(list, "max_mr", attr.max_mr());
    entry(list, "max_pd", attr.max_pd());
    entry(list, "max_qp_rd_atom", attr.max_qp_rd_atom());
    entry(list, "max_ee_rd_atom", attr.max_ee_rd_atom());
    entry(list, "max_res_rd_atom", attr.max_res_rd_atom());
    entry(list, "max_qp_init_rd_atom", attr.max_qp_init_rd_atom());
    entry(list, "max_ee_init_rd_atom", attr.max_ee_init_rd_atom());
    let cap = attr.atomic_cap();
    let name = cap.name().map(|_| format!("ATOMIC_{cap}"));
    let (name, code) = (
        names::known(name, "invalid atomic capability"),
        cap.as_raw(),
    );
    entry(list, "atomic_cap", format_args!("{name} ({code})"));
    entry(list, "max_ee", attr.max_ee());
    entry(list, "max_rdd", attr.max_rdd());
    entry(list, "max_mw", attr.max_mw());
    entry(list, "max_raw_ipv6_qp", attr.max_raw_ipv6_qp());
    entry(list, "max_raw_ethy_qp", attr.max_raw_ethy_qp());
    entry(list, "max_mcast_grp", attr.max_mcast_grp());
    entry(list, "max_mcast_qp_attach", attr.max_mcast_qp_attach());
    entry(
        list,
        "max_total_mcast_qp_attach",
        attr.max_total_mcast_qp_attach(),
    );
    entry(list, "max_ah", attr.max_ah());
    entry(list, "max_fmr", attr.max_fmr());
    if attr.max_fmr() != 0 {
        entry(list, "max_map_per_fmr", attr.max_map_per_fmr());
    }
    entry(list, "max_srq", attr.max_srq());
    if attr.max_srq() != 0 {
        entry(list, "max_srq_wr", attr.max_srq_wr());
        entry(list, "max_srq_sge", attr.max_srq_sge());
    }
    entry(list, "max_pkeys", attr.max_pkeys());
    entry(list, "local_ca_ack_delay", attr.local_ca_ack_delay());
}

fn capabilities(list: &mut Listing, attr: &DeviceAttrEx) {
    list.line(1, "general_odp_caps:");
    list.flags(attr.odp_caps().bits(), names::ODP_CAPS);
    for (label, caps) in [
        ("rc_odp_caps:", attr.rc_odp_caps()),
        ("uc_odp_caps:", attr.uc_odp_caps()),
        ("ud_odp_caps:", attr.ud_odp_caps()),
        ("xrc_odp_caps:", attr.xrc_odp_caps()),
    ] {
        list.line(1, label);
        if caps.is_empty() {
            list.line(5, "NO SUPPORT");
        }
        list.flags(caps.bits().into(), names::ODP_TRANSPORT_CAPS);
    }
    match attr.completion_timestamp_mask() {
        0 => list.line(1, "completion_timestamp_mask not supported"),
        mask => list.entry(
            1,
            56,
            "completion timestamp_mask",
            format_args!("0x{mask:016x}"),
        ),
    }
    match attr.hca_core_clock() {
        0 => list.line(1, "core clock not supported"),
        khz => entry(list, "hca_core_clock", format_args!("{khz}kHZ")),
    }
    if attr.raw_packet_caps() != 0 {
        list.line(1, "raw packet caps:");
        list.flags(attr.raw_packet_caps().into(), names::RAW_PACKET_CAPS);
    }
    let flags = attr.as_raw().device_cap_flags_ex;
    entry(list, "device_cap_flags_ex", format_args!("0x{flags:X}"));
    list.flags(flags >> 32 << 32, names::DEVICE_CAPS_EX);
    let (max_tso, qp_types) = attr.tso_caps();
    list.line(1, "tso_caps:");
    list.entry(2, 48, "max_tso", max_tso);
    if max_tso != 0 {
        queue_pairs(list, qp_types);
    }
    offloads(list, attr);
}

fn offloads(list: &mut Listing, attr: &DeviceAttrEx) {
    let rss = &attr.as_raw().rss_caps;
    let tables = rss.max_rwq_indirection_tables;
    let hash = format!("0x{:x}", rss.rx_hash_function);
    let fields = format!("0x{:X}", rss.rx_hash_fields_mask);
    list.line(1, "rss_caps:");
    list.entry(2, 64, "max_rwq_indirection_tables", tables);
    let size = rss.max_rwq_indirection_table_size;
    list.entry(2, 64, "max_rwq_indirection_table_size", size);
    list.entry(2, 64, "rx_hash_function", hash);
    list.entry(2, 64, "rx_hash_fields_mask", fields);
    if rss.supported_qpts != 0 {
        queue_pairs(list, rss.supported_qpts);
    }
    entry(list, "max_wq_type_rq", attr.max_wq_type_rq());

    let pacing = &attr.as_raw().packet_pacing_caps;
    let (min, max) = (pacing.qp_rate_limit_min, pacing.qp_rate_limit_max);
    list.line(1, "packet_pacing_caps:");
    list.entry(2, 40, "qp_rate_limit_min", format_args!("{min}kbps"));
    list.entry(2, 40, "qp_rate_limit_max", format_args!("{max}kbps"));
    if max != 0 {
        queue_pairs(list, pacing.supported_qpts);
    }

    let tm = &attr.as_raw().tm_caps;
    if tm.max_num_tags == 0 {
        list.line(1, "tag matching not supported");
    } else {
        entry(list, "max_rndv_hdr_size", tm.max_rndv_hdr_size);
        entry(list, "max_num_tags", tm.max_num_tags);
        entry(list, "max_ops", tm.max_ops);
        entry(list, "max_sge", tm.max_sge);
        list.line(1, "flags:");
        list.flags(tm.flags.into(), names::TM_CAPS);
    }

    let (max_count, max_period) = attr.cq_mod_caps();
    if max_count != 0 && max_period != 0 {
        list.line(0, "");
        list.line(1, "cq moderation caps:");
        list.entry(2, 32, "max_cq_count", max_count);
        list.entry(2, 32, "max_cq_period", format_args!("{max_period} us\n"));
    }
    match attr.max_dm_size() {
        0 => {}
        size => entry(
            list,
            "maximum available device memory",
            format_args!("{size}Bytes\n"),
        ),
    }
}

fn queue_pairs(list: &mut Listing, types: u32) {
    list.line(2, "supported_qp:");
    list.flags(types.into(), names::QP_TYPES);
}

/// An attribute of a port.
fn port_entry(list: &mut Listing, label: &str, value: impl std::fmt::Display) {
    list.entry(3, 48, label, value);
}

fn link(list: &mut Listing, port: &PortAttr) {
    let raw = port.as_raw();
    let (state, code) = (port.state(), port.state().as_raw());
    let name = state.name().map(|_| format!("PORT_{state}"));
    let name = names::known(name, "invalid state");
    port_entry(list, "state", format_args!("{name} ({code})"));
    for (label, mtu, code) in [
        ("max_mtu", port.max_mtu(), raw.max_mtu.0),
        ("active_mtu", port.active_mtu(), raw.active_mtu.0),
    ] {
        let mtu = names::known(mtu, "invalid MTU");
        port_entry(list, label, format_args!("{mtu} ({code})"));
    }
    port_entry(list, "sm_lid", port.sm_lid());
    port_entry(list, "port_lid", port.lid());
    port_entry(list, "port_lmc", format_args!("0x{:02x}", port.lmc()));
    port_entry(list, "link_layer", port.link_layer());
}

fn details(list: &mut Listing, device: &Device, port: &PortAttr) {
    let hex = |value: u32| format!("0x{value:x}");
    port_entry(list, "max_msg_sz", hex(port.max_msg_sz()));
    port_entry(
        list,
        "port_cap_flags",
        format_args!("0x{:08x}", port.port_cap_flags().bits()),
    );
    port_entry(
        list,
        "port_cap_flags2",
        format_args!("0x{:04x}", port.port_cap_flags2().bits()),
    );
    let code = port.max_vl_num();
    port_entry(
        list,
        "max_vl_num",
        format_args!("{} ({code})", names::vl_num(code)),
    );
    port_entry(list, "bad_pkey_cntr", hex(port.bad_pkey_cntr()));
    port_entry(list, "qkey_viol_cntr", hex(port.qkey_viol_cntr()));
    port_entry(list, "sm_sl", port.sm_sl());
    port_entry(list, "pkey_tbl_len", port.pkey_tbl_len());
    port_entry(list, "gid_tbl_len", port.gid_tbl_len());
    port_entry(list, "subnet_timeout", port.subnet_timeout());
    port_entry(list, "init_type_reply", port.init_type_reply());
    let (width, speed) = (port.active_width(), port.active_speed());
    let (lanes, code) = (names::known(width.lanes(), "invalid width"), width.as_raw());
    port_entry(list, "active_width", format_args!("{lanes}X ({code})"));
    let name = names::known(speed.name().map(|_| speed), "invalid speed");
    let code = speed.as_raw();
    port_entry(list, "active_speed", format_args!("{name} ({code})"));
    if let Some(rate) = port.active_rate() {
        let gbps = f64::from(rate) / 1000.0;
        port_entry(list, "active_rate", format_args!("{gbps} Gbps"));
    }
    if device.transport_type() == TransportType::IB {
        let (state, code) = (port.phys_state(), port.phys_state().as_raw());
        let name = names::phys_state(state);
        port_entry(list, "phys_state", format_args!("{name} ({code})"));
    }
}

/// The GID table: C's lines, and behind them the network interface.
fn gids(list: &mut Listing, context: &Context, port_num: u8, port: &PortAttr) -> Result<()> {
    for entry in context.gid_table(port_num)? {
        let mut value = names::gid(entry.gid(), entry.gid_type());
        if port.link_layer() == LinkLayer::ETHERNET {
            let gid_type = entry.gid_type();
            let name = names::known(gid_type.name().map(|_| gid_type), "Invalid gid type");
            value = format!("{value}, {name}");
        }
        if let Some(netdev) = entry.netdev() {
            value = format!("{value}, {netdev}");
        }
        port_entry(list, &format!("GID[{:3}]", entry.gid_index()), value);
    }
    Ok(())
}
