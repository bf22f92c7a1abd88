package config

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/perceptor/perceptor/internal/duration"
	"github.com/perceptor/perceptor/internal/spelling"
)

// decoder converts the values of sources to typed values and collects faults.
type decoder struct {
	faults []error
	// dsnSecrets says that the last list of servers held a password.
	dsnSecrets bool
}

func (d *decoder) fault(format string, args ...any) {
	d.faults = append(d.faults, fmt.Errorf(format, args...))
}

func (d *decoder) unknown(name string) {
	for _, k := range keys {
		if strings.HasPrefix(k.Name, name+".") {
			d.fault("%s: is a section: give the keys that it has, such as %s", name, k.Name)
			return
		}
	}
	meant := nearest(name, append(sectionNames(), names(keys, func(k Key) string { return k.Name })...))
	if 2*spelling.Distance(name, meant) > max(len(name), len(meant)) { // no misspelling of it
		d.fault("unknown key %s", name)
		return
	}
	d.fault("unknown key %s; did you mean %s?", name, meant)
}

func (d *decoder) mistyped(k Key, v any, from string) {
	d.fault("%s: %s is not %s (%s)", k.Name, k.shown(v), k.typeName(), from)
}

// shown returns a value for messages.
func (k Key) shown(v any) string {
	if k.Secret || k.Name == serversKey {
		return "the value"
	}
	return fmt.Sprintf("%.100q", fmt.Sprint(v))
}

// text decodes a value from the environment, a flag or a tag.
func (d *decoder) text(k Key, text, from string, into reflect.Value) {
	switch {
	case k.kind == durationType || k.kind.Kind() == reflect.String:
		d.value(k, text, from, into)
	case k.Name == serversKey:
		d.serversText(k, text, from, into)
	case k.kind.Kind() == reflect.Slice:
		var list []any
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				list = append(list, part)
			}
		}
		d.value(k, list, from, into)
	default:
		var v any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			v = text
		}
		d.value(k, v, from, into)
	}
}

// value decodes a value that YAML has typed.
func (d *decoder) value(k Key, v any, from string, into reflect.Value) {
	if k.Name == serversKey {
		d.servers(k, v, from, into)
		return
	}
	decoded, ok := decodeAs(k.kind, v)
	if !ok {
		d.mistyped(k, v, from)
		return
	}
	into.Set(reflect.ValueOf(decoded))
}

// decodeAs converts v to type t if that needs no guess. A duration needs its unit.
func decodeAs(t reflect.Type, v any) (any, bool) {
	if t == durationType {
		text, ok := v.(string)
		if !ok {
			return nil, false
		}
		d, err := duration.Parse(text)
		return d, err == nil
	}
	switch t.Kind() {
	case reflect.String:
		s, ok := v.(string)
		return s, ok
	case reflect.Bool:
		b, ok := v.(bool)
		return b, ok
	case reflect.Int:
		n, ok := v.(int)
		return n, ok
	case reflect.Float64:
		if n, ok := v.(int); ok {
			return float64(n), true
		}
		f, ok := v.(float64)
		return f, ok
	}
	return decodeTexts(v)
}

func decodeTexts(v any) (any, bool) {
	list, ok := v.([]any)
	if !ok && v != nil {
		return nil, false
	}
	var texts []string
	for _, e := range list {
		s, ok := e.(string)
		if !ok {
			return nil, false
		}
		texts = append(texts, s)
	}
	return texts, true
}

// serversKey is the only key with a structured value.
const serversKey = "postgres.servers"

// joinedURLs matches connection URLs with a comma between them.
var joinedURLs = regexp.MustCompile(`,\s*postgres(ql)?://`)

// serversText decodes a YAML list or a single connection string.
func (d *decoder) serversText(k Key, text, from string, into reflect.Value) {
	if !strings.HasPrefix(strings.TrimSpace(text), "[") {
		// Commas separate hosts within one URL, so those of a list would be read as a part of the
		// first one, and its passwords as a part of a name that is shown.
		if joinedURLs.MatchString(text) {
			d.fault("%s: several servers need a list, such as [{dsn: URL}, {dsn: URL}] (%s)", k.Name, from)
			d.dsnSecrets = true
			return
		}
		d.dsnSecrets = hasPassword(text)
		into.Set(reflect.ValueOf([]Server{{DSN: text}}))
		return
	}
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		d.mistyped(k, v, from)
		return
	}
	d.servers(k, v, from, into)
}

func (d *decoder) servers(k Key, v any, from string, into reflect.Value) {
	list, ok := v.([]any)
	if !ok {
		d.mistyped(k, v, from)
		return
	}
	d.dsnSecrets = false
	servers := make([]Server, len(list))
	for i, e := range list {
		fields, ok := e.(map[string]any)
		if !ok {
			d.mistyped(k, v, from)
			return
		}
		for name, value := range fields {
			d.serverField(k.Name+"["+strconv.Itoa(i)+"].", name, value, from, &servers[i])
		}
	}
	into.Set(reflect.ValueOf(servers))
}

func (d *decoder) serverField(at, name string, value any, from string, into *Server) {
	switch name {
	case "dsn":
		dsn, ok := value.(string)
		if !ok {
			d.fault("%s%s: the value is not a text (%s)", at, name, from)
		}
		d.dsnSecrets = d.dsnSecrets || hasPassword(dsn)
		d.setDSN(into, at, dsn, from)
	case "dsn_file":
		into.DSNFile = fmt.Sprint(value)
		dsn, err := ReadSecret(into.DSNFile)
		if err != nil {
			d.fault("%s%s: %v (%s)", at, name, err, from)
		}
		d.setDSN(into, at, dsn, from)
	case "databases":
		list, _ := value.([]any)
		for _, e := range list {
			n, ok := e.(int)
			if !ok {
				d.fault("%s%s: %v is not a number (%s)", at, name, e, from)
			}
			into.Databases = append(into.Databases, n)
		}
		if list == nil && value != nil {
			d.fault("%s%s: %v is not a list of numbers (%s)", at, name, value, from)
		}
	case "storage":
		size, ok := parseSize(value)
		if !ok {
			d.fault("%s%s: %v is not a size, such as 500GB or 1.5TiB (%s)", at, name, value, from)
		}
		into.Storage = size
	default:
		d.fault("unknown key %s%s; did you mean %s%s?", at, name, at, nearest(name, []string{"dsn", "dsn_file", "databases", "storage"}))
	}
}

func (d *decoder) setDSN(into *Server, at, dsn, from string) {
	if into.DSN != "" {
		d.fault("%sdsn: dsn and dsn_file are both given (%s)", at, from)
	}
	into.DSN = dsn
}
