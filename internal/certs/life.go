package certs

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"time"
)

// Life returns when the first certificate of a file ends, and which part of its life is left at an instant: 1 at
// its begin, 0 from its end on.
func Life(file string, now time.Time) (left float64, end time.Time, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, end, err // which names the file
	}
	block, _ := pem.Decode(text)
	for block != nil && block.Type != "CERTIFICATE" { // the key may be in the same file
		block, text = pem.Decode(text)
	}
	if block == nil {
		return 0, end, errors.New(file + " holds no certificate")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return 0, end, fmt.Errorf("%s: %w", file, err)
	}
	life := c.NotAfter.Sub(c.NotBefore)
	if life <= 0 {
		return 0, c.NotAfter, nil
	}
	return min(1, max(0, c.NotAfter.Sub(now).Seconds()/life.Seconds())), c.NotAfter, nil
}
