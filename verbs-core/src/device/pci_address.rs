//! Addresses of PCI functions.

use std::fmt;
use std::str::FromStr;

/// The address of a PCI function: domain, bus, device and function, as in `0000:3b:00.0`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl PciAddress {
    /// The domain (also segment): 0 on most machines.
    #[must_use]
    pub const fn domain(self) -> u32 {
        self.domain
    }

    /// The bus.
    #[must_use]
    pub const fn bus(self) -> u8 {
        self.bus
    }

    /// The device on its bus, 0 to 31.
    #[must_use]
    pub const fn device(self) -> u8 {
        self.device
    }

    /// The function of its device, 0 to 7.
    #[must_use]
    pub const fn function(self) -> u8 {
        self.function
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl fmt::Debug for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An error from parsing a [`PciAddress`].
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a PCI address is domain:bus:device.function in hexadecimal digits, as in 0000:3b:00.0")]
#[non_exhaustive]
pub struct ParsePciAddressError;

crate::error_debug!(ParsePciAddressError);

impl FromStr for PciAddress {
    type Err = ParsePciAddressError;

    /// Parses `0000:3b:00.0`. The domain may have eight digits, as `nvidia-smi` prints it, or be left
    /// out, as `lspci` does.
    fn from_str(text: &str) -> Result<Self, ParsePciAddressError> {
        parse_pci(text).ok_or(ParsePciAddressError)
    }
}

fn parse_pci(text: &str) -> Option<PciAddress> {
    fn hex(text: &str, digits: std::ops::RangeInclusive<usize>) -> Option<u32> {
        let plain = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !plain || !digits.contains(&text.len()) {
            return None;
        }
        u32::from_str_radix(text, 16).ok()
    }
    let (rest, function) = text.rsplit_once('.')?;
    let (rest, device) = rest.rsplit_once(':')?;
    let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0000", rest));
    let (device, function) = (hex(device, 2..=2)?, hex(function, 1..=1)?);
    if device > 31 || function > 7 {
        return None;
    }
    Some(PciAddress {
        domain: hex(domain, 4..=8)?,
        bus: u8::try_from(hex(bus, 2..=2)?).ok()?,
        device: u8::try_from(device).ok()?,
        function: u8::try_from(function).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_are_parsed_and_printed() {
        let address: PciAddress = "0000:3b:1f.7".parse().unwrap();
        assert_eq!(address.to_string(), "0000:3b:1f.7");
        let PciAddress {
            domain,
            bus,
            device,
            function,
        } = address;
        assert_eq!((domain, bus, device, function), (0, 0x3b, 0x1f, 7));
        let (long, short) = ("00000000:3B:1F.7".parse(), "3b:1f.7".parse());
        assert_eq!((long, short), (Ok(address), Ok(address)));
        let large: PciAddress = "10000:01:00.0".parse().unwrap();
        assert_eq!((large.domain(), large.to_string().len()), (0x10000, 13));
        let bad = [
            "",
            "0000",
            "pci0000:3b",
            "0000:3b:00",
            "0000:3b:20.0",
            "0000:3b:00.8",
            "000:3b:00.0",
            "0000:3b:0.0",
            "+000:3b:00.0",
            "0000:3b:00.0.1",
            "0:0:3b:00.0",
            "mlx5_core.sf.4",
        ];
        for bad in bad {
            assert_eq!(
                bad.parse::<PciAddress>(),
                Err(ParsePciAddressError),
                "{bad}"
            );
        }
    }
}
