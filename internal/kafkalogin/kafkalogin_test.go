package kafkalogin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestATokenIsReadAgainForEachConnection(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "token")
	m := TokenFile(path)
	for _, token := range []string{"first", "second"} {
		if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, first, err := m.Start(t.Context())
		if want := "n,,\x01auth=Bearer " + token + "\x01\x01"; err != nil || string(first) != want {
			t.Errorf("Start = %q, %v, want %q", first, err, want)
		}
	}
}

func TestAFileWithoutATokenIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "token")
	if _, _, err := TokenFile(path).Start(t.Context()); err == nil {
		t.Error("a missing file was accepted")
	}
	for name, text := range map[string]string{
		"empty": "\n", "two words": "a b", "two parts": "a\x01auth=b", "too large": strings.Repeat("a", maxSecretBytes+1),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := TokenFile(path).Start(t.Context()); err == nil {
			t.Errorf("%s: was accepted", name)
		}
	}
}

func TestAPasswordIsReadAgainForEachConnection(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "password")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := PasswordFile(Plain, "user", path); err == nil {
		t.Error("a missing file was accepted")
	}
	write("first\n")
	m, err := PasswordFile(Plain, "user", path)
	if err != nil {
		t.Fatal(err)
	}
	for _, password := range []string{"first", "second "} {
		write(password + "\n")
		if _, first, err := m.Start(t.Context()); err != nil || string(first) != "\x00user\x00"+password {
			t.Errorf("Start = %q, %v, want the password %q", first, err, password)
		}
	}
	if _, err := PasswordFile("GSSAPI", "user", path); err == nil || m.Name() != Plain {
		t.Errorf("an unknown mechanism: %v", err)
	}
}

func TestARefusedTokenIsNotQuoted(t *testing.T) {
	t.Parallel()
	done, _, err := answered{}.Next(t.Context(), []byte(`{"status":"invalid_token","token":"abc"}`))
	if done || err == nil || strings.Contains(err.Error(), "abc") {
		t.Errorf("Next = %t, %v, want an error without the token", done, err)
	}
	if done, _, err := (answered{}).Next(t.Context(), nil); !done || err != nil {
		t.Errorf("Next = %t, %v, want done", done, err)
	}
}

func TestMechanismsThatSendSecretsAreKnown(t *testing.T) {
	t.Parallel()
	for name, clear := range map[string]bool{Plain: true, Scram256: false, Scram512: false} {
		m, err := New(name, "user", "password")
		if err != nil || m.Name() != name || InTheClear(m) != clear {
			t.Errorf("New(%s) = %v, %v; in the clear %t, want %t", name, m, err, InTheClear(m), clear)
		}
	}
	if !InTheClear(TokenFile("")) || InTheClear(nil) {
		t.Error("a token is not known to be in the clear, or no login is")
	}
	if _, err := New("GSSAPI", "", ""); err == nil {
		t.Error("an unknown mechanism was accepted")
	}
}
