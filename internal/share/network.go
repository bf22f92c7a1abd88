package share

import "net/netip"

// CallerBits is the size of the IPv6 network of one caller, who has all its addresses.
const CallerBits = 64

// Network returns the party of an address: the IPv4 address, or the IPv6 network of so many bits. Addresses
// that are not valid share the zero one.
func Network(a netip.Addr, bits int) netip.Addr {
	a = a.Unmap().WithZone("")
	if network, err := a.Prefix(bits); a.Is6() && err == nil {
		return network.Addr()
	}
	return a
}
