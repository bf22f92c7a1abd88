package pgserver

import (
	"fmt"
	"os"
	"path/filepath"
)

// Files of the data directory of a server with TLS.
const (
	certName = "perceptor.crt"
	keyName  = "perceptor.key"
	hbaName  = "perceptor.hba.conf"
)

// onlyTLS refuses connections without TLS.
const onlyTLS = "hostssl all all 127.0.0.1/32 scram-sha-256\nhostssl replication all 127.0.0.1/32 scram-sha-256\n"

// installTLS copies the files for TLS into the data directory, where the server's user owns
// them. PostgreSQL refuses a key that others may read.
func (l *launcher) installTLS() error {
	t := l.opts.TLS
	if t == nil {
		return nil
	}
	for name, from := range map[string]string{certName: t.CertFile, keyName: t.KeyFile, hbaName: ""} {
		text := []byte(onlyTLS)
		if from != "" {
			var err error
			if text, err = os.ReadFile(from); err != nil {
				return fmt.Errorf("install certificate: %w", err)
			}
		}
		path := filepath.Join(l.opts.DataDir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return fmt.Errorf("install certificate: %w", err)
		}
		if err := l.account.own(path); err != nil {
			return err
		}
	}
	return nil
}

func (l *launcher) caFile() string {
	if l.opts.TLS == nil {
		return ""
	}
	return l.opts.TLS.CAFile
}
