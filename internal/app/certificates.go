package app

import (
	"fmt"
	"time"

	"github.com/perceptor/perceptor/internal/certs"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/store"
)

// certificate is one that a program presents to others, or by which it judges those of others. key is that of the
// configuration.
type certificate struct {
	key, file string
	authority bool
}

// life returns which part of its life is left, and when it ends.
func (c *certificate) life() (left float64, end time.Time, err error) {
	if c.authority {
		return certs.LifeOfAuthorities(c.file, time.Now())
	}
	return certs.Life(c.file, time.Now())
}

// certificates returns the configured certificates, and those of CAs: those of both programs, and those of the API.
func certificates(c *config.Config, api bool) (list []certificate) {
	all := []certificate{{"ops.tls.cert_file", c.Ops.TLS.CertFile, false}}
	for i := range c.Postgres.Servers {
		cert, authorities := store.CertificateFiles(c.Postgres.Servers[i].DSN)
		key := fmt.Sprintf("postgres.servers[%d].dsn ", i)
		all = append(all, certificate{key + "sslcert", cert, false}, certificate{key + "sslrootcert", authorities, true})
	}
	if c.Kafka.TLS.Enabled {
		all = append(all, certificate{"kafka.tls.cert_file", c.Kafka.TLS.CertFile, false}, certificate{"kafka.tls.ca_file", c.Kafka.TLS.CAFile, true})
	}
	if c.ZooKeeper.TLS.Enabled {
		all = append(all, certificate{"zookeeper.tls.cert_file", c.ZooKeeper.TLS.CertFile, false}, certificate{"zookeeper.tls.ca_file", c.ZooKeeper.TLS.CAFile, true})
	}
	if api {
		all = append(all, certificate{"taskd.tls.cert_file", c.Taskd.TLS.CertFile, false}, certificate{"taskd.tls.client_ca_file", c.Taskd.TLS.ClientCAFile, true},
			certificate{"taskd.oidc.ca_file", c.Taskd.OIDC.CAFile, true})
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
			lives[one.key], _, _ = one.life()
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
		left, end, err := one.life()
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
