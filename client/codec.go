package client

import (
	"bytes"
	"cmp"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/perceptor/perceptor/task"
)

// A Codec converts the values of params, and payloads, between the form that programs see and
// the form that the service, Kafka and backups store, such as ciphertext. The keys of params are
// stored as they are, so that handlers can change single params. A Codec may be used
// concurrently.
type Codec interface {
	// Encode returns the stored form of the value of the param with a key. It must return
	// the same for the same value, so that a repeated call with the same request id is
	// recognised. The result counts against the limits of params.
	Encode(key, value string) (string, error)
	// Decode returns the value of a stored form.
	Decode(key, stored string) (string, error)
	// EncodePayload returns the stored form of a payload, the same for the same payload. Its
	// content type must be true of it: the service refuses what says that it is JSON and is
	// not. It must not change p.
	EncodePayload(p Payload) (Payload, error)
	// DecodePayload returns the payload of a stored form. It must not change p.
	DecodePayload(p Payload) (Payload, error)
}

// encoded returns t with encoded params and payload.
func (c *Client) encoded(op string, t Task) (Task, error) { return encodedBy(c.cfg.Codec, op, t) }

func encodedBy(codec Codec, op string, t Task) (Task, error) {
	params, err := encodeParams(codec, t.Params)
	if err != nil {
		return t, refused(op, FieldError{Field: "params", Message: err.Error()})
	}
	payload, err := encodePayload(codec, t.Payload)
	if err != nil {
		return t, refused(op, FieldError{Field: "payload", Message: err.Error()})
	}
	t.Params, t.Payload = params, payload
	return t, nil
}

// encodedTasks returns tasks with encoded params and payloads.
func (c *Client) encodedTasks(op string, tasks []Task) (_ []Task, err error) {
	if c.cfg.Codec == nil {
		return tasks, nil
	}
	tasks = slices.Clone(tasks)
	for i := range tasks {
		if tasks[i], err = c.encoded(op, tasks[i]); err != nil {
			return nil, err
		}
	}
	return tasks, nil
}

// decoded decodes params and payload of what the service has answered. If that fails it leaves
// both as they are and says why.
func (c *Client) decoded(params *map[string]string, payload **Payload, failed *error) {
	decoded, err := decodeParams(c.cfg.Codec, *params)
	content := *payload
	if err == nil {
		content, err = decodePayload(c.cfg.Codec, content)
	}
	if *failed = err; err == nil {
		*params, *payload = decoded, content
	}
}

// encodePayload and decodePayload return nil for none.
func encodePayload(codec Codec, p *Payload) (*Payload, error) {
	if codec == nil || p == nil {
		return p, nil
	}
	stored, err := codec.EncodePayload(*p)
	return &stored, err
}

func decodePayload(codec Codec, p *Payload) (*Payload, error) {
	if codec == nil || p == nil {
		return p, nil
	}
	decoded, err := codec.DecodePayload(*p)
	if err != nil {
		return nil, fmt.Errorf("payload: %w", err)
	}
	return &decoded, nil
}

func encodeParams(codec Codec, params map[string]string) (map[string]string, error) {
	if codec == nil {
		return params, nil
	}
	return converted(params, codec.Encode)
}

func decodeParams(codec Codec, params map[string]string) (map[string]string, error) {
	if codec == nil {
		return params, nil
	}
	return converted(params, codec.Decode)
}

func converted(params map[string]string, convert func(key, value string) (string, error)) (map[string]string, error) {
	out := maps.Clone(params)
	for k, v := range params {
		var err error
		if out[k], err = convert(k, v); err != nil {
			return nil, fmt.Errorf("params[%q]: %w", k, err)
		}
	}
	return out, nil
}

// AESConfig configures a codec of [NewAESCodec].
type AESConfig struct {
	// Keys are secrets of 32 random bytes by their names: 1 to 20 lower-case letters, digits
	// and hyphens. Values name the key that encrypted them, so keep a key here until no
	// task has a value of it.
	Keys map[string][]byte
	// Current is the name of the key for new values.
	Current string
	// AcceptPlain decodes values that are not encrypted to themselves. It is for the time
	// in which tasks from before the codec exist: with it, whoever can add tasks or edit
	// them can set values without knowing a key.
	AcceptPlain bool
}

// aesPrefix begins a stored value: "aes1.NAME.BASE64".
const aesPrefix = "aes1."

type aesCodec struct {
	keys        map[string]*aesKey
	current     string
	acceptPlain bool
}

type aesKey struct {
	aead  cipher.AEAD
	nonce []byte // secret of nonces
}

// NewAESCodec returns a codec that encrypts values and payloads with AES-256-GCM. It needs 40 to
// 70 bytes more for each value. The nonce is an HMAC of the value and its key, as in the synthetic
// nonces of RFC 5297, so equal values of a key have equal stored forms, which is visible, and
// a value cannot be moved to another key. The content type of a payload is encrypted with its
// data; the stored one is [EncryptedContentType].
func NewAESCodec(cfg AESConfig) (Codec, error) {
	c := &aesCodec{keys: map[string]*aesKey{}, current: cfg.Current, acceptPlain: cfg.AcceptPlain}
	for name, secret := range cfg.Keys {
		if name == "" || len(name) > 20 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			return nil, fmt.Errorf("perceptor: name %q of a key: 1 to 20 lower-case letters, digits and hyphens are allowed", name)
		}
		if len(secret) != 32 {
			return nil, fmt.Errorf("perceptor: key %q has %d bytes; 32 random bytes are needed", name, len(secret))
		}
		k, err := newAESKey(secret)
		if err != nil {
			return nil, fmt.Errorf("perceptor: key %q: %w", name, err)
		}
		c.keys[name] = k
	}
	if c.keys[cfg.Current] == nil {
		return nil, fmt.Errorf("perceptor: there is no key %q, which is to be the current one", cfg.Current)
	}
	return c, nil
}

func newAESKey(secret []byte) (*aesKey, error) {
	encryption, err := hkdf.Key(sha256.New, secret, nil, "perceptor params encryption", 32)
	if err != nil {
		return nil, err
	}
	nonce, err := hkdf.Key(sha256.New, secret, nil, "perceptor params nonce", 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(encryption)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	return &aesKey{aead, nonce}, err
}

// Encode implements [Codec].
func (c *aesCodec) Encode(key, value string) (string, error) {
	return aesPrefix + c.current + "." + base64.RawURLEncoding.EncodeToString(c.keys[c.current].seal(nil, key, []byte(value))), nil
}

// seal appends the nonce and the ciphertext of a value to dst. The key of a payload is "",
// which no param has.
func (k *aesKey) seal(dst []byte, key string, value []byte) []byte {
	mac := hmac.New(sha256.New, k.nonce)
	mac.Write(binary.BigEndian.AppendUint32(nil, uint32(len(key))))
	mac.Write([]byte(key))
	mac.Write(value)
	nonce := mac.Sum(nil)[:k.aead.NonceSize()]
	return k.aead.Seal(append(dst, nonce...), nonce, value, []byte(key))
}

// open returns the value of what seal has appended.
func (k *aesKey) open(key string, sealed []byte) ([]byte, error) {
	n := k.aead.NonceSize()
	if len(sealed) < n {
		return nil, errDamaged
	}
	value, err := k.aead.Open(nil, sealed[:n], sealed[n:], []byte(key))
	if err != nil {
		return nil, errDamaged
	}
	return value, nil
}

var (
	errPlain   = errors.New("the value is not encrypted")
	errDamaged = errors.New("the value is damaged, or belongs to another key of the params")
)

// Decode implements [Codec].
func (c *aesCodec) Decode(key, stored string) (string, error) {
	rest, ok := strings.CutPrefix(stored, aesPrefix)
	if !ok {
		if c.acceptPlain {
			return stored, nil
		}
		return "", errPlain
	}
	name, text, _ := strings.Cut(rest, ".")
	k, err := c.key(name)
	if err != nil {
		return "", err
	}
	sealed, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return "", errDamaged
	}
	value, err := k.open(key, sealed)
	return string(value), err
}

func (c *aesCodec) key(name string) (*aesKey, error) {
	if k := c.keys[name]; k != nil {
		return k, nil
	}
	return nil, fmt.Errorf("the value is encrypted with the key %.20q, which is not known here", name)
}

// EncryptedContentType is the content type of payloads that the codec of [NewAESCodec] has
// encrypted.
const EncryptedContentType = "application/vnd.perceptor.encrypted"

// EncodePayload implements [Codec]. The plaintext is the length of the content type as a
// varint, the content type, and the data.
func (c *aesCodec) EncodePayload(p Payload) (Payload, error) {
	plain := binary.AppendUvarint(make([]byte, 0, binary.MaxVarintLen16+len(p.ContentType)+len(p.Data)), uint64(len(p.ContentType)))
	plain = append(append(plain, p.ContentType...), p.Data...)
	prefix := aesPrefix + c.current + "."
	return Payload{Data: c.keys[c.current].seal([]byte(prefix), "", plain), ContentType: EncryptedContentType}, nil
}

// DecodePayload implements [Codec].
func (c *aesCodec) DecodePayload(p Payload) (Payload, error) {
	rest, ok := bytes.CutPrefix(p.Data, []byte(aesPrefix))
	if p.ContentType != EncryptedContentType || !ok {
		if c.acceptPlain {
			return p, nil
		}
		return p, errPlain
	}
	name, sealed, _ := bytes.Cut(rest, []byte("."))
	k, err := c.key(string(name))
	if err != nil {
		return p, err
	}
	plain, err := k.open("", sealed)
	if err != nil {
		return p, err
	}
	size, used := binary.Uvarint(plain)
	if used <= 0 || size > uint64(len(plain)-used) {
		return p, errDamaged
	}
	plain = plain[used:]
	return Payload{Data: plain[size:], ContentType: cmp.Or(string(plain[:size]), task.DefaultContentType)}, nil
}
