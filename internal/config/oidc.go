package config

import (
	"net"
	"net/url"
	"strings"
	"time"
)

// OIDC configures JSON Web Tokens as identities of callers.
type OIDC struct {
	Issuer      string        `key:"issuer" doc:"URL of the OpenID Connect issuer whose JSON Web Tokens callers may use instead of tokens of their own. Its discovery document names its keys. Empty: none."`
	Audience    string        `key:"audience" doc:"The audience that a token must have. Needed with issuer."`
	Algorithms  []string      `key:"algorithms" default:"RS256,PS256,ES256,EdDSA" doc:"The signature algorithms that are accepted, of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512 and EdDSA."`
	TenantClaim string        `key:"tenant_claim" default:"tenant" doc:"The claim with the tenant's name. A token without it has scopes of the installation only."`
	ScopesClaim string        `key:"scopes_claim" default:"scope" doc:"The claim with the scopes: words separated by spaces, or a list."`
	ScopePrefix string        `key:"scope_prefix" default:"perceptor:" doc:"What scopes begin with, such as perceptor:read. Words without it are ignored."`
	ClockSkew   time.Duration `key:"clock_skew" default:"30s" doc:"How far the clocks of the issuer and of taskd may differ; at most 5m."`
	CAFile      string        `key:"ca_file" doc:"File of the certificates that sign the issuer's certificate. Default: the system's."`
}

// ConsoleLogin configures logins to the console at the issuer of taskd.oidc.
type ConsoleLogin struct {
	ClientID     string   `key:"client_id" doc:"What the issuer knows the console by. It must be allowed to send browsers back to URL/console/login/issuer/back. Empty: people log in with tokens only."`
	ClientSecret string   `key:"client_secret" secret:"true" doc:"The secret of client_id. Empty for a public client, which has a proof key only."`
	Scopes       []string `key:"scopes" doc:"Scopes to ask for besides openid, such as perceptor:read."`
	Token        string   `key:"token" default:"id" doc:"Which token of the issuer the console calls the API with: id or access. It must have taskd.oidc.audience and the claims of the tenant and the scopes; an access token must be a JSON Web Token."`
}

// BehindTLS reports whether browsers reach the console by TLS, which a proxy may end.
func (c *Console) BehindTLS() bool {
	u, err := url.Parse(c.URL)
	return err == nil && u.Scheme == "https"
}

// validate checks the settings, also against those of the issuer.
func (c *Console) validate(v *validator, issuer string) {
	v.check(c.Secret == "" || len(c.Secret) >= 16, "taskd.console.secret: has fewer than 16 bytes")
	v.check(c.Login.Token == "id" || c.Login.Token == "access", "taskd.console.login.token: %q is neither id nor access", c.Login.Token)
	v.check(c.Login.ClientID == "" || issuer != "", "taskd.oidc.issuer: is missing: taskd.console.login.client_id is given")
	v.check(c.Login.ClientID == "" || c.URL != "", "taskd.console.url: is missing: taskd.console.login.client_id is given")
	u, err := url.Parse(c.URL)
	v.check(c.URL == "" || err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && strings.Trim(u.Path, "/") == "" && u.RawQuery == "",
		"taskd.console.url: %q is not an address such as https://perceptor.example.com", c.URL)
}

func (c *OIDC) validate(v *validator) {
	v.within("taskd.oidc.clock_skew", c.ClockSkew, 0, 5*time.Minute)
	if c.Issuer == "" {
		return
	}
	u, err := url.Parse(c.Issuer)
	v.check(err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && u.RawQuery == "" && u.Fragment == "",
		"taskd.oidc.issuer: %q is not a URL such as https://login.example.com", c.Issuer)
	v.check(c.Audience != "", "taskd.oidc.audience: is missing: taskd.oidc.issuer is given, and tokens for other services must not be accepted")
	v.check(len(c.Algorithms) > 0, "taskd.oidc.algorithms: is empty")
	v.check(c.TenantClaim != "", "taskd.oidc.tenant_claim: is empty")
	v.check(c.ScopesClaim != "", "taskd.oidc.scopes_claim: is empty")
}

// link checks that nobody on the way to the issuer can pretend to be it.
func (c *OIDC) link(l *links) {
	u, err := url.Parse(c.Issuer)
	if c.Issuer == "" || err != nil {
		return
	}
	address := u.Host
	if u.Port() == "" {
		address = net.JoinHostPort(u.Hostname(), "80")
	}
	l.check(u.Scheme == "https", "taskd.oidc.issuer", address, noTLS, "use a URL with https")
}
