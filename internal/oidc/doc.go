// Package oidc verifies the JSON Web Tokens of one OpenID Connect issuer.
//
// A token is accepted if one of the issuer's published keys has signed it with an allowed
// algorithm, if it names the issuer and the audience, has an expiry, and is valid now, give or
// take the clock skew. Nothing in a token chooses how it is verified: the algorithms are a
// list of the configuration and all are asymmetric, so neither "none" nor a MAC with the
// public key is one; a key is used only with algorithms of its type; header fields that
// bring or locate keys are not read.
//
// The keys come from the issuer's discovery document (OpenID Connect Discovery 1.0) and its
// key set (RFC 7517). They are read at the start, every 10 minutes, and when a token names an
// unknown key, then at most every 10 s, so that forged tokens cause no flood of requests. While
// the issuer does not answer, known keys are used for an hour. Every request to it has a
// deadline and a bounded answer, and follows no redirect.
package oidc
