//! TCP, to compare with the byte stream: the same loops, over the network link of the device.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};

use programs::{Common, Context as _, Failure, Frames};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use verbs_core::Context;

use crate::figures::Figures;
use crate::messages;
use crate::plan::Plan;
use crate::stream::run;

/// The network link of a device.
struct Link {
    address: Ipv4Addr,
    name: Option<String>,
}

/// Measures on this side.
pub(crate) fn measure(common: &Common, plan: &Plan, frames: &Frames) -> Result<Figures, Failure> {
    let link = Link::of(&programs::open(common)?, common)?;
    let runtime = programs::runtime(1)?;
    let connecting = async {
        match common.host {
            Some(_) => link.connect(plan, frames).await,
            None => link.accept(plan, frames).await,
        }
    };
    let streams = runtime.block_on(async { timeout(common.limit(), connecting).await });
    let streams = streams.map_err(|_over| Failure::new("TCP did not connect in time"))??;
    let streams = streams.into_iter().map(TcpStream::into_split).collect();
    run(streams, &runtime, common, plan, frames)
}

impl Link {
    /// The address of the first GID that is an IPv4 address; if a GID was asked for, of those of
    /// its network link.
    fn of(context: &Context, common: &Common) -> Result<Self, Failure> {
        let ports = match common.ib_port {
            Some(port) => port..=port,
            None => context.ports()?,
        };
        for port in ports {
            let table = context.gid_table(port)?;
            let link_of = |index| {
                let mut table = table.iter();
                let entry = table.find(|entry| entry.gid_index() == index)?;
                Some(entry.ndev_ifindex())
            };
            let asked = common.gid_idx.map(link_of);
            let is_asked = |link| asked.is_none_or(|asked| asked == Some(link));
            for entry in table.iter().filter(|entry| is_asked(entry.ndev_ifindex())) {
                let address = Ipv6Addr::from(entry.gid().raw()).to_ipv4_mapped();
                if let Some(address) = address {
                    let name = entry.netdev();
                    return Ok(Self { address, name });
                }
            }
        }
        let device = context.device().name();
        let of = common
            .gid_idx
            .map(|index| format!(" on the link of GID {index}"));
        Err(Failure::new(format!(
            "{device} has no GID that is an IPv4 address{}: there is no TCP beside it",
            of.unwrap_or_default()
        )))
    }

    /// A socket whose packets take this link, although the peer may be on this machine: they would not
    /// even be packets then. A peer on the same link has no other way.
    fn socket(&self, theirs: Ipv4Addr) -> Result<TcpSocket, Failure> {
        let socket = TcpSocket::new_v4()?;
        if let Some(name) = self.name.as_ref().filter(|_| theirs != self.address) {
            let bound = socket.bind_device(Some(name.as_bytes()));
            bound.context(|| format!("cannot use the network link {name}"))?;
        }
        Ok(socket)
    }

    async fn accept(&self, plan: &Plan, frames: &Frames) -> Result<Vec<TcpStream>, Failure> {
        let theirs: Ipv4Addr = messages::receive(frames)?;
        let socket = self.socket(theirs)?;
        socket.bind(SocketAddrV4::new(self.address, 0).into())?;
        let listener = socket.listen(plan.qps)?;
        let ours = SocketAddrV4::new(self.address, listener.local_addr()?.port());
        messages::send(frames, &ours)?;
        let mut streams = Vec::new();
        for _ in 0..plan.qps {
            let (stream, _from) = listener.accept().await?;
            stream.set_nodelay(true)?;
            streams.push(stream);
        }
        Ok(streams)
    }

    async fn connect(&self, plan: &Plan, frames: &Frames) -> Result<Vec<TcpStream>, Failure> {
        messages::send(frames, &self.address)?;
        let theirs: SocketAddrV4 = messages::receive(frames)?;
        let mut streams = Vec::new();
        for _ in 0..plan.qps {
            let stream = self.socket(*theirs.ip())?.connect(theirs.into()).await;
            let stream = stream.context(|| format!("cannot connect to {theirs}"))?;
            stream.set_nodelay(true)?;
            streams.push(stream);
        }
        Ok(streams)
    }
}
