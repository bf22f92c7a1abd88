package certs

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"time"
)

// lastOfLife is how much of a long life counts: what renews a certificate of ten years has no year of time to do so.
const lastOfLife = 365 * 24 * time.Hour

// Life returns when the first certificate of a file ends, and which part of its life is left at an instant: 1 at
// its begin, 0 from its end on. Of a life that is longer than a year, the last year counts.
func Life(file string, now time.Time) (left float64, end time.Time, err error) {
	return life(file, now, 1)
}

// LifeOfAuthorities is [Life] for the one of a file's certificates that ends last: those of a CA before and after its
// change are in one file.
func LifeOfAuthorities(file string, now time.Time) (left float64, end time.Time, err error) {
	return life(file, now, -1)
}

// life returns the life of the one that ends last of the first most certificates of a file; -1: of all.
func life(file string, now time.Time, most int) (left float64, end time.Time, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, end, err // which names the file
	}
	found := 0
	for block, rest := pem.Decode(text); block != nil && found != most; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" { // the key may be in the same file
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil && most < 0 { // as a pool of CAs does
			continue
		}
		if err != nil {
			return 0, end, fmt.Errorf("%s: %w", file, err)
		}
		if found++; c.NotAfter.After(end) {
			left, end = leftOf(c, now), c.NotAfter
		}
	}
	if found == 0 {
		return 0, end, errors.New(file + " holds no certificate")
	}
	return left, end, nil
}

func leftOf(c *x509.Certificate, now time.Time) float64 {
	life := min(c.NotAfter.Sub(c.NotBefore), lastOfLife)
	if life <= 0 {
		return 0
	}
	return min(1, max(0, c.NotAfter.Sub(now).Seconds()/life.Seconds()))
}
