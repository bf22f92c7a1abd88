package config

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// writeFile makes a file with a mode, whatever the umask.
func writeFile(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestEverySecretCanBeInAFileAndInNoFlag(t *testing.T) {
	path, n := writeFile(t, "hush-1\n", 0o640), 0
	for _, k := range keys {
		if !k.Secret {
			continue
		}
		n++
		f := k.fileKey()
		for source, get := range map[string]func() (*Loaded, error){
			"env":  func() (*Loaded, error) { return load(t, "", []string{f.Env() + "=" + path}) },
			"flag": func() (*Loaded, error) { return load(t, "", nil, "--"+f.Flag()+"="+path) },
		} {
			l, err := get()
			if err != nil || k.value(&l.Config).String() != "hush-1" {
				t.Errorf("%s by %s: %v", f.Name, source, err)
				continue
			}
			var out bytes.Buffer
			if err := l.Print(&out); err != nil || strings.Contains(out.String(), "hush") || !strings.Contains(out.String(), path) {
				t.Errorf("%s by %s is printed as:\n%s", f.Name, source, out.String())
			}
			if again, err := load(t, out.String(), nil); err != nil || k.value(&again.Config).String() != "hush-1" {
				t.Errorf("%s by %s: the printed configuration loads with %v", f.Name, source, err)
			}
		}
		_, err := load(t, "", nil, "--"+k.Flag()+"=hush-2")
		if err == nil || !strings.Contains(err.Error(), "--"+f.Flag()) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s as a flag: %v", k.Name, err)
		}
	}
	if n < 2 {
		t.Errorf("there are %d secret keys", n)
	}
}

func TestSecretFlagsAreNotInTheHelp(t *testing.T) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	Register(flags)
	if usage := flags.FlagUsages(); strings.Contains(usage, "--zookeeper.password ") || !strings.Contains(usage, "--zookeeper.password-file") {
		t.Errorf("got %s", usage)
	}
}

func TestPasswordsInConnectionStringsAreNoFlags(t *testing.T) {
	for dsn, ok := range map[string]bool{
		"host=h user=u": true, "postgres://u@h/d": true, "postgres://u:hush@h/d": false, "host=h password = 'hush'": false,
		"postgres://h/d?p%61ssword=hush": false, "[{dsn: 'host=h password=hush'}]": false, "[{dsn: 'host=h'}]": true,
	} {
		_, err := load(t, "", nil, "--postgres.servers="+dsn)
		if (err == nil) != ok || err != nil && strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v", dsn, err)
		}
		if _, err := load(t, "", []string{"PERCEPTOR_POSTGRES_SERVERS=" + dsn}); err != nil {
			t.Errorf("%s in the environment: %v", dsn, err)
		}
	}
}

func TestALaterSourceOverridesASecretAndItsFile(t *testing.T) {
	path := writeFile(t, "from-file", 0o600)
	for name, c := range map[string]struct {
		file string
		env  []string
		want string
	}{
		"a file over a value":  {"zookeeper: {user: u, password: plain}", []string{"PERCEPTOR_ZOOKEEPER_PASSWORD_FILE=" + path}, "from-file"},
		"a value over a file":  {"zookeeper: {user: u, password_file: " + path + "}", []string{"PERCEPTOR_ZOOKEEPER_PASSWORD=plain"}, "plain"},
		"an empty file's path": {"zookeeper: {user: u, password: plain, password_file: ''}", nil, "plain"},
	} {
		if l, err := load(t, c.file, c.env); err != nil || l.ZooKeeper.Password != c.want {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestServersTakeTheirConnectionStringFromAFile(t *testing.T) {
	path := writeFile(t, "postgres://u:hush@h/d\n", 0o400)
	l, err := load(t, "postgres: {servers: [{dsn_file: "+path+"}, {dsn: host=x}]}", nil)
	if err != nil || l.Postgres.Servers[0].DSN != "postgres://u:hush@h/d" || l.Postgres.Servers[1].DSN != "host=x" {
		t.Errorf("got %v", err)
	}
}

func TestBadFilesOfSecretsAreRefusedWithoutTheirContent(t *testing.T) {
	readable, writable := writeFile(t, "hush", 0o644), writeFile(t, "hush", 0o602)
	for want, file := range map[string]string{
		"every user may read the secrets":  "zookeeper: {user: u, password_file: " + readable + "}",
		"run chmod o-r " + readable:        "postgres: {servers: [{dsn_file: " + readable + "}]}",
		"every user may write the file":    "zookeeper: {user: u, password_file: " + writable + "}",
		"no such file":                     "zookeeper: {user: u, password_file: /no/such/file}",
		"is empty":                         "zookeeper: {user: u, password_file: " + writeFile(t, "\n", 0o600) + "}",
		"at most 65536":                    "zookeeper: {user: u, password_file: " + writeFile(t, strings.Repeat("hush", 20_000), 0o600) + "}",
		"zookeeper.password is given, too": "zookeeper: {user: u, password: hush, password_file: " + readable + "}",
		"dsn and dsn_file":                 "postgres: {servers: [{dsn: 'password=hush', dsn_file: " + writeFile(t, "hush", 0o600) + "}]}",
		"needs quotes":                     "zookeeper: {user: u, password: *hush}",
	} {
		_, err := load(t, file, nil)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: got %v", want, err)
		}
	}
}

func TestPermissionsOfTheConfigurationFileAreChecked(t *testing.T) {
	secrets := map[string]bool{
		"zookeeper: {user: u, password: hush}":                         true,
		"postgres: {servers: [{dsn: 'postgres://u:hush@h/d'}]}":        true,
		"postgres: {servers: [{dsn: 'postgres://u@h/d'}]}":             false,
		"zookeeper: {user: u, password_file: %s}":                      false,
		"log: {level: debug}":                                          false,
		"postgres: {servers: [{dsn: 'host=h'}]}\nops: {token: hush11}": true,
	}
	other := writeFile(t, "x", 0o600)
	for text, secret := range secrets {
		text = strings.ReplaceAll(text, "%s", other)
		for mode, good := range map[os.FileMode]bool{0o600: true, 0o640: true, 0o644: !secret, 0o660: true, 0o662: false, 0o666: false} {
			path := writeFile(t, text, mode)
			_, err := Load(Sources{File: path, Environ: []string{"HOME=/"}})
			if (err == nil) != good {
				t.Errorf("%s with the mode %o: %v", text, mode, err)
			}
		}
	}
	// Another source may give the secret that a readable file would hold.
	path := writeFile(t, "zookeeper: {user: u}", 0o644)
	if _, err := Load(Sources{File: path, Environ: []string{"PERCEPTOR_ZOOKEEPER_PASSWORD=hush"}}); err != nil {
		t.Error(err)
	}
}

func TestMaskDSNHidesPasswordsHoweverTheyAreSpelled(t *testing.T) {
	const p = "hush"
	for _, dsn := range []string{
		"postgres://u:%s@h/d", "postgresql://u:%s@h/d", "postgres://u:a%%40%s@h/d", "postgres://:%s@h/d", "postgres://u:%s@h1:1,h2:2/d",
		"postgres://h/d?password=%s", "postgres://h/d?p%%61ssword=%s&x=1", "postgres://h/d?x=1&sslpassword=%s", "postgres://h/d?PASSWORD=%s",
		"postgres://h/d?%%zz=%s", "postgres://u:a/%s@h/d", "postgres://u:a#%s@h/d", "postgres://u:a?%s@h/d", "postgres://u:a %s@h/d", "postgres://u:[%s@h/d",
		"password=%s", "password = %s user=u", "password='%s'", "password = 'a b %s' user=u", `password='it\'s %s'`, `password=a\ %s user=u`, "PASSWORD=%s",
		"host=h sslpassword=%s", "password='%s", "password=a %s", "user=u password=postgres://%s", "\tpassword\n=\v%s", "oauth_client_secret=%s", "%s",
		"password==%s", `password=\'%s`, `user='a\\' password='%s'`,
	} {
		dsn = fmt.Sprintf(dsn, p)
		if got := MaskDSN(dsn); strings.Contains(got, p) {
			t.Errorf("%q becomes %q", dsn, got)
		}
	}
	for _, dsn := range []string{"host=h user=u passfile=/a/b", "postgres://u@h1,h2/d?sslmode=verify-full", "", "host='a b'"} {
		if got := MaskDSN(dsn); got != dsn {
			t.Errorf("%q becomes %q", dsn, got)
		}
	}
}
