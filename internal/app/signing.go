package app

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/perceptor/perceptor/assign"
)

// signingFigure is the figure of a dispatcher that tells its kafka.signing_secret from others.
const signingFigure = "signing"

// signingNumber returns a number that programs with the same kafka.signing_secret have in common. 32 bits tell two
// secrets apart, and do not tell a secret.
func signingNumber(secret string) int64 {
	sum, err := hkdf.Key(sha256.New, []byte(secret), nil, "perceptor number of kafka.signing_secret", 4)
	if err != nil {
		panic(err) // the length is valid
	}
	return int64(binary.BigEndian.Uint32(sum))
}

// strangers returns the names of the dispatchers that sign with another secret than the one with this number.
func strangers(members []assign.MemberState, number int64) (names []string) {
	for _, m := range members {
		if n, ok := m.Figures[signingFigure]; ok && n != number { // those of an older version have none
			names = append(names, m.Info.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// signing checks that all dispatchers sign with one secret: that of this configuration if it has one, or is that of a taskd.
// Listeners get the keys from taskd and skip what another secret has signed, so such runs are never handled.
func (e *examination) signing(members []assign.MemberState) {
	number, own := signingNumber(e.config.Kafka.SigningSecret), e.config.Kafka.SigningSecret != "" || e.itself
	if !own {
		for _, m := range members {
			if n, ok := m.Figures[signingFigure]; ok {
				number = n
				break
			}
		}
	}
	names := strangers(members, number)
	switch {
	case len(names) == 0:
		return
	case own:
		e.add(Failed, "signing", "dispatchers sign records with another kafka.signing_secret than this configuration has, so listeners skip their runs: %s", strings.Join(names, ", "))
	default:
		e.add(Failed, "signing", "dispatchers sign records with different values of kafka.signing_secret, so listeners skip the runs of some: %s differ from the others", strings.Join(names, ", "))
	}
	e.cure("give all taskds and dispatchers the same kafka.signing_secret, and restart those that had another one")
}
