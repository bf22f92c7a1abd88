package config

import (
	"net/url"
	"strings"
)

// mask is printed in place of a secret.
const mask = "***"

// MaskDSN returns a connection string without its passwords, however they are spelled. It
// follows the rules by which the driver reads connection strings. What it cannot read, it
// masks as a whole.
func MaskDSN(dsn string) string {
	masked, _ := maskDSN(dsn)
	return masked
}

// hasPassword reports whether a connection string holds a password, or may hold one because
// it cannot be read.
func hasPassword(dsn string) bool {
	_, found := maskDSN(dsn)
	return found
}

func maskDSN(dsn string) (masked string, found bool) {
	if strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://") {
		return maskURL(dsn)
	}
	return maskPairs(dsn)
}

// isSecretWord reports whether the value of a parameter is a secret: password, sslpassword,
// oauth_client_secret.
func isSecretWord(word string) bool {
	word = strings.ToLower(word)
	return strings.Contains(word, "password") || strings.Contains(word, "secret")
}

func maskURL(dsn string) (masked string, found bool) {
	u, err := url.Parse(dsn)
	if err != nil || u.Opaque != "" {
		return mask, true
	}
	if _, has := u.User.Password(); has {
		found = true
		u.User = url.UserPassword(u.User.Username(), mask)
	}
	// A part after # is none of a connection string; an unescaped password may be there.
	if u.Fragment != "" {
		found = true
		u.Fragment, u.RawFragment = mask, ""
	}
	pairs := strings.Split(u.RawQuery, "&")
	for i, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		word, err := url.QueryUnescape(name)
		if value != "" && (err != nil || isSecretWord(word)) {
			found = true
			pairs[i] = name + "=" + mask
		}
	}
	u.RawQuery = strings.Join(pairs, "&")
	// Only URLs need the mask escaped; people read this one.
	return strings.ReplaceAll(u.String(), url.QueryEscape(mask), mask), found
}

const dsnSpace = " \t\n\r\v\f"

// maskPairs masks the values of secret words in a list such as user=x password='a b'.
func maskPairs(dsn string) (masked string, found bool) {
	var out strings.Builder
	for rest := dsn; strings.Trim(rest, dsnSpace) != ""; {
		word, after, ok := strings.Cut(rest, "=")
		value := strings.TrimLeft(after, dsnSpace)
		n := valueLength(value)
		if word = strings.Trim(word, dsnSpace); !ok || n < 0 || strings.ContainsAny(word, dsnSpace) {
			return mask, true
		}
		out.WriteString(rest[:len(rest)-len(value)])
		if n > 0 && isSecretWord(word) {
			found = true
			out.WriteString(mask)
		} else {
			out.WriteString(value[:n])
		}
		rest = value[n:]
	}
	return out.String(), found
}

// valueLength returns the number of bytes of the value, quoted or not, at the begin of s; -1
// if its quote does not end.
func valueLength(s string) int {
	quoted := strings.HasPrefix(s, "'")
	i := 0
	if quoted {
		i = 1
	}
	for ; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\':
			i++
		case quoted && c == '\'':
			return i + 1
		case !quoted && strings.IndexByte(dsnSpace, c) >= 0:
			return i
		}
	}
	if quoted {
		return -1
	}
	return len(s)
}
