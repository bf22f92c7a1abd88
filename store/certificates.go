package store

import (
	"net/url"
	"os"
	"strings"
)

// CertificateFiles returns the files that a connection string, or the environment, names: that of the client's
// certificate, and that of the CA which signs the server's. "" means none.
func CertificateFiles(dsn string) (cert, authorities string) {
	value := settingsOf(dsn)
	of := func(key, variable string) string {
		if v := value(key); v != "" {
			return v
		}
		return os.Getenv(variable)
	}
	if of("sslmode", "PGSSLMODE") == "disable" {
		return "", ""
	}
	if authorities = of("sslrootcert", "PGSSLROOTCERT"); authorities == "system" {
		authorities = ""
	}
	return of("sslcert", "PGSSLCERT"), authorities
}

// settingsOf returns what looks up a setting of a connection string.
func settingsOf(dsn string) func(key string) string {
	if strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://") {
		u, err := url.Parse(dsn)
		if err != nil {
			return func(string) string { return "" }
		}
		return u.Query().Get
	}
	settings := map[string]string{}
	for dsn = strings.TrimSpace(dsn); dsn != ""; dsn = strings.TrimSpace(dsn) {
		key, rest, ok := strings.Cut(dsn, "=")
		if !ok {
			break
		}
		settings[strings.TrimSpace(key)], dsn = settingValue(strings.TrimSpace(rest))
	}
	return func(key string) string { return settings[key] }
}

// settingValue reads a value that a text in the form key=value begins with: up to a space, or in single quotes. A
// backslash stands before a quote, a space or a backslash that belongs to the value.
func settingValue(text string) (value, rest string) {
	end := " "
	if strings.HasPrefix(text, "'") {
		end, text = "'", text[1:]
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text):
			i++
			b.WriteByte(text[i])
		case c == end[0]:
			return b.String(), text[i+1:]
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), ""
}
