package share

import (
	"net/netip"
	"testing"
)

func TestACallerIsAnAddressOrAnIPv6Network(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.7":           "192.0.2.7",
		"::ffff:192.0.2.7":    "192.0.2.7",
		"2001:db8:1:2:3:4::9": "2001:db8:1:2::",
		"fe80::1%eth0":        "fe80::",
	} {
		if got := Network(netip.MustParseAddr(address), CallerBits); got != netip.MustParseAddr(want) {
			t.Errorf("the party of %s is %s, want %s", address, got, want)
		}
	}
	if got := Network(netip.MustParseAddr("2001:db8:1:2:3:4::9"), 48); got != netip.MustParseAddr("2001:db8:1::") {
		t.Errorf("the site is %s", got)
	}
	if got := Network(netip.Addr{}, CallerBits); got.IsValid() {
		t.Errorf("the party of no address is %s", got)
	}
}
