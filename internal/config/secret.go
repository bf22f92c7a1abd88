package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
)

// Secrets come from files and from the environment. A flag is no place for them, because
// every user of the machine sees the arguments of all processes. Each secret key has a
// neighbour with the suffix _file, which names a file with the value. A file that holds a
// secret must not be readable by others, and no file may be writable by others.

// fileSuffix ends the names of keys whose value is the path of a file with a secret.
const fileSuffix = "_file"

// maxSecretBytes is the most bytes of a file with a secret.
const maxSecretBytes = 64 << 10

// fileKey returns the key for a file with the value of the secret key k.
func (k Key) fileKey() Key {
	return Key{
		Name: k.Name + fileSuffix, fileOf: k.Name, index: k.index, kind: k.kind,
		Doc: "File with the value of `" + k.Name + "`, instead of it. Others must not be able to read it.",
	}
}

// SecretFile returns the file from which the value of a secret key was read; "": it was not.
func (c *Config) SecretFile(key string) string { return c.secretFiles[key] }

// keepFiles remembers the files whose secrets are in force.
func (l *Loaded) keepFiles() {
	l.secretFiles = map[string]string{}
	for _, k := range keys {
		if k.fileOf != "" && l.origins[k.fileOf] == k.Name {
			l.secretFiles[k.fileOf] = l.files[k.Name]
		}
	}
}

// ReadSecret returns the content of a file that holds one secret, without the line break at
// its end. It refuses a file that every user may read.
func ReadSecret(path string) (string, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", fmt.Errorf("%s: %w", path, pathCause(err))
	case info.Size() > maxSecretBytes:
		return "", fmt.Errorf("%s has %d bytes; a secret has at most %d", path, info.Size(), maxSecretBytes)
	}
	if err := checkMode(path, info.Mode(), true); err != nil {
		return "", err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, pathCause(err))
	}
	secret := strings.TrimRight(string(text), "\r\n")
	if secret == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	return secret, nil
}

// pathCause returns an error of the operating system without the path, which the message
// names.
func pathCause(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// checkMode returns an error for a file that others may write or, if it holds secrets, read.
func checkMode(path string, mode fs.FileMode, secret bool) error {
	switch {
	case runtime.GOOS == "windows" || !mode.IsRegular():
		return nil
	case mode&0o002 != 0:
		return fmt.Errorf("%s: every user may write the file: run chmod o-w %s", path, path)
	case secret && mode&0o004 != 0:
		return fmt.Errorf("%s: every user may read the secrets in the file: run chmod o-r %s", path, path)
	}
	return nil
}

// checkFile checks the permissions of the configuration file.
func (l *Loaded) checkFile(d *decoder, path string) {
	if path == "" {
		return
	}
	info, err := os.Stat(path)
	if err != nil {
		return // it was just read
	}
	if err := checkMode(path, info.Mode(), l.secretsFrom("file "+path)); err != nil {
		d.fault("configuration file %v", err)
	}
}

// secretsFrom reports whether a source has given the value of a secret.
func (l *Loaded) secretsFrom(origin string) bool {
	for _, k := range keys {
		switch {
		case l.origins[k.Name] != origin || k.fileOf != "":
		case k.Secret, k.Name == serversKey && l.dsnSecrets:
			return true
		}
	}
	return false
}

// refuseSecretFlags reports secrets that were given as flags.
func (l *Loaded) refuseSecretFlags(d *decoder) {
	for _, k := range keys {
		if l.origins[k.Name] != k.flagOrigin() {
			continue
		}
		if k.Secret {
			d.fault("--%s: a secret is not accepted as a flag, because other users can see it: use --%s or %s", k.Flag(), k.fileKey().Flag(), k.Env())
		}
		if k.Name == serversKey && l.dsnSecrets {
			d.fault("--%s: a password is not accepted in a flag, because other users can see it: use %s, or dsn_file in a configuration file", k.Flag(), k.Env())
		}
	}
}
