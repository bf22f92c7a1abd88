package app

import (
	"time"

	"github.com/perceptor/perceptor/internal/certs"
	"github.com/perceptor/perceptor/internal/config"
)

// certificate is one that a program presents to others. key is that of the configuration.
type certificate struct{ key, file string }

// certificates returns the configured certificates: those of both programs, and that of the API. Those for
// PostgreSQL are named in connection strings, and are not among them.
func certificates(c *config.Config, api bool) (list []certificate) {
	all := []certificate{{"ops.tls.cert_file", c.Ops.TLS.CertFile}}
	if c.Kafka.TLS.Enabled {
		all = append(all, certificate{"kafka.tls.cert_file", c.Kafka.TLS.CertFile})
	}
	if c.ZooKeeper.TLS.Enabled {
		all = append(all, certificate{"zookeeper.tls.cert_file", c.ZooKeeper.TLS.CertFile})
	}
	if api {
		all = append(all, certificate{"taskd.tls.cert_file", c.Taskd.TLS.CertFile})
	}
	for _, one := range all {
		if one.file != "" {
			list = append(list, one)
		}
	}
	return list
}

// certificateLives returns what reads which part of the life of each certificate is left, by key. A file that cannot be
// read counts as ended: a program that starts now would refuse it.
func certificateLives(c *config.Config, api bool) func() map[string]float64 {
	list := certificates(c, api)
	return func() map[string]float64 {
		lives := make(map[string]float64, len(list))
		for _, one := range list {
			lives[one.key], _, _ = certs.Life(one.file, time.Now())
		}
		return lives
	}
}

// lateRenewal is the part of a certificate's life by whose begin it should have been renewed.
const lateRenewal = 0.1

// renewCure is what to do about a certificate that ends.
const renewCure = "renew it; the programs read the file again when it changes"

// certificates examines the certificates in the files of the configuration on this machine.
func (e *examination) certificates() {
	for _, one := range certificates(e.config, true) {
		left, end, err := certs.Life(one.file, time.Now())
		at := end.UTC().Format(time.RFC3339)
		switch {
		case err != nil:
			e.add(Warning, "certificates", "%s: not checked: %s", one.key, oneLine(err))
		case left == 0:
			e.add(Failed, "certificates", "%s: %s has expired at %s", one.key, one.file, at)
			e.cure(renewCure)
		case left < lateRenewal:
			e.add(Warning, "certificates", "%s: %s expires at %s", one.key, one.file, at)
			e.cure(renewCure)
		default:
			e.add(OK, "certificates", "%s: %s is valid until %s", one.key, one.file, at)
		}
	}
}
