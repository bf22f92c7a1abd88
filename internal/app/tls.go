package app

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/perceptor/perceptor/internal/config"
)

// statEvery is how often the files are checked for changes.
const statEvery = time.Second

// certificate is the certificate of the API. It is read again when its files change.
// If they cannot be read, the last good one stays in use.
type certificate struct {
	files config.ServerTLS
	log   *slog.Logger

	mu      sync.Mutex
	good    *tls.Certificate
	state   [2]time.Time
	checked time.Time
}

// serverTLS returns the configuration of the API's listeners; nil means no TLS.
func serverTLS(files config.ServerTLS, log *slog.Logger) (*tls.Config, error) {
	if files.CertFile == "" {
		return nil, nil
	}
	c := &certificate{files: files, log: log}
	if err := c.read(); err != nil {
		return nil, err
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.current}
	if files.ClientCAFile != "" {
		pool, err := certPool("taskd.tls.client_ca_file", files.ClientCAFile)
		if err != nil {
			return nil, err
		}
		conf.ClientCAs, conf.ClientAuth = pool, tls.RequireAndVerifyClientCert
	}
	return conf, nil
}

// current is called for each new connection.
func (c *certificate) current(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.checked) >= statEvery {
		c.checked = now
		if state := c.modified(); state != c.state {
			if err := c.read(); err != nil {
				c.log.Warn("new certificate cannot be used; the old one stays", "err", err)
			}
			c.state = state
		}
	}
	return c.good, nil
}

func (c *certificate) modified() (state [2]time.Time) {
	for i, f := range []string{c.files.CertFile, c.files.KeyFile} {
		if info, err := os.Stat(f); err == nil {
			state[i] = info.ModTime()
		}
	}
	return state
}

func (c *certificate) read() error {
	state := c.modified()
	cert, err := tls.LoadX509KeyPair(c.files.CertFile, c.files.KeyFile)
	if err != nil {
		return fmt.Errorf("taskd.tls.cert_file: %w", err)
	}
	c.good, c.state = &cert, state
	return nil
}
