package console

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

const (
	// idleTimeout ends a session after the last request of its user, maxSession after its
	// first login.
	idleTimeout = 30 * time.Minute
	maxSession  = 12 * time.Hour
	// renewAfter is how old the last request in a cookie may be.
	renewAfter = time.Minute
	// maxLogins bounds the logins of a session. The newest stay.
	maxLogins = 4
	// maxCookie is what browsers store for certain.
	maxCookie = 4000
)

// login is one login of a session.
type login struct {
	Secret string `json:"secret"`
	// Name and Tenant are those of the identity; Tenant "": the installation.
	Name   string                    `json:"name"`
	Tenant string                    `json:"tenant,omitempty"`
	Scopes []perceptorv1.Token_Scope `json:"scopes"`
}

func (l *login) has(scopes ...perceptorv1.Token_Scope) bool {
	return l != nil && slices.ContainsFunc(scopes, func(s perceptorv1.Token_Scope) bool { return slices.Contains(l.Scopes, s) })
}

// session is the content of the session's cookie.
type session struct {
	Began time.Time `json:"began"`
	Seen  time.Time `json:"seen"`
	// CSRF is the secret of the session's forms.
	CSRF   []byte  `json:"csrf"`
	Logins []login `json:"logins"`
}

// add adds a login, or replaces the one of the same tenant.
func (s *session) add(l login) {
	s.Logins = slices.DeleteFunc(s.Logins, func(o login) bool { return o.Tenant == l.Tenant })
	s.Logins = append(s.Logins, l)
	if extra := len(s.Logins) - maxLogins; extra > 0 {
		s.Logins = s.Logins[extra:]
	}
}

// remove removes the login with a secret.
func (s *session) remove(secret string) {
	s.Logins = slices.DeleteFunc(s.Logins, func(l login) bool { return l.Secret == secret })
}

// of returns the login of a tenant, or of the installation for "". It may be nil.
func (s *session) of(tenant string) *login {
	for i := range s.Logins {
		if s.Logins[i].Tenant == tenant {
			return &s.Logins[i]
		}
	}
	return nil
}

// formToken returns the token that the session's forms must have. It differs from call to
// call, so that nothing can be learned from the size of compressed pages.
func (s *session) formToken() string {
	pad := make([]byte, 2*len(s.CSRF))
	rand.Read(pad[:len(s.CSRF)]) //nolint:errcheck // never fails
	subtle.XORBytes(pad[len(s.CSRF):], pad, s.CSRF)
	return base64.RawURLEncoding.EncodeToString(pad)
}

// owns reports whether a form has a token of this session.
func (s *session) owns(token string) bool {
	pad, err := base64.RawURLEncoding.DecodeString(token)
	n := len(s.CSRF)
	if err != nil || n == 0 || len(pad) != 2*n {
		return false
	}
	subtle.XORBytes(pad[n:], pad[n:], pad[:n])
	return subtle.ConstantTimeCompare(pad[n:], s.CSRF) == 1
}

// sealer encrypts what cookies have.
type sealer struct{ aead cipher.AEAD }

func newSealer(secret []byte) (*sealer, error) {
	if len(secret) == 0 {
		secret = make([]byte, 32)
		rand.Read(secret) //nolint:errcheck // never fails
	}
	key, err := hkdf.Key(sha256.New, secret, nil, "perceptor console sessions", 32)
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	return &sealer{aead}, nil
}

// seal returns v as a text that only [sealer.open] for the same purpose reads.
func (s *sealer) seal(purpose string, v any) (string, error) {
	plain, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(s.aead.Seal(nil, nil, plain, []byte(purpose))), nil
}

func (s *sealer) open(purpose, text string, v any) error {
	sealed, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return err
	}
	plain, err := s.aead.Open(nil, nil, sealed, []byte(purpose))
	if err != nil {
		return err
	}
	return json.Unmarshal(plain, v)
}

var (
	errNoSession    = errors.New("no session")
	errSessionEnded = errors.New("the session has ended")
	errSessionLarge = errors.New("the credentials are too large for a cookie")
)

func (c *Console) cookieName(name string) string {
	name = "perceptor_" + name
	if c.config.Secure {
		return "__Secure-" + name
	}
	return name
}

// session returns the session of a request.
func (c *Console) session(r *http.Request) (*session, error) {
	cookie, err := r.Cookie(c.cookieName("session"))
	if err != nil || cookie.Value == "" {
		return nil, errNoSession
	}
	s := &session{}
	if err := c.sealer.open("session", cookie.Value, s); err != nil {
		return nil, errSessionEnded
	}
	now := c.config.Now()
	if now.Sub(s.Seen) > idleTimeout || now.Sub(s.Began) > maxSession || len(s.Logins) == 0 {
		return nil, errSessionEnded
	}
	return s, nil
}

// renew stores that the user is there, at most once a minute.
func (c *Console) renew(w http.ResponseWriter, s *session) {
	if c.config.Now().Sub(s.Seen) > renewAfter {
		_ = c.store(w, s) // it was stored before, so it is not too large
	}
}

// store sends the session to the browser.
func (c *Console) store(w http.ResponseWriter, s *session) error {
	s.Seen = c.config.Now()
	text, err := c.sealer.seal("session", s)
	if err != nil {
		return err
	}
	if len(text) > maxCookie {
		return errSessionLarge
	}
	c.setCookie(w, "session", text, 0)
	return nil
}

// setCookie sets a cookie that only the console reads; age 0: until the browser ends,
// below 0: at once.
func (c *Console) setCookie(w http.ResponseWriter, name, value string, age time.Duration) {
	http.SetCookie(w, &http.Cookie{
		Name: c.cookieName(name), Value: value, Path: root, MaxAge: int(age / time.Second),
		HttpOnly: true, Secure: c.config.Secure, SameSite: http.SameSiteStrictMode,
	})
}

// notice is the result of an action, which the next page shows once.
type notice struct {
	// Kind is done or failed.
	Kind, Text     string
	Link, LinkText string `json:",omitempty"`
}

const noticeAge = time.Minute

// setNotice shows a notice on the next page. Its text is cut as far as the cookie needs: a character
// has up to six bytes in JSON.
func (c *Console) setNotice(w http.ResponseWriter, n notice) {
	const maxText = 1000
	whole := n.Text
	for most := maxText; most > 0; most /= 2 {
		n.Text = short(whole, most)
		text, err := c.sealer.seal("notice", n)
		if err == nil && len(text) <= maxCookie { // a struct of texts has a JSON form
			c.setCookie(w, "notice", text, noticeAge)
			return
		}
	}
}

// takeNotice returns the notice of a request and removes it. It may be nil.
func (c *Console) takeNotice(w http.ResponseWriter, r *http.Request) *notice {
	cookie, err := r.Cookie(c.cookieName("notice"))
	if err != nil {
		return nil
	}
	c.setCookie(w, "notice", "", -time.Second)
	n := &notice{}
	if c.sealer.open("notice", cookie.Value, n) != nil {
		return nil
	}
	return n
}
