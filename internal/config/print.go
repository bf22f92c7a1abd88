package config

import (
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Print writes the configuration as YAML, with the origin of each value as a
// comment. Secrets are masked.
func (l *Loaded) Print(w io.Writer) error {
	var b strings.Builder
	var within []string
	for _, k := range keys {
		parts := strings.Split(k.Name, ".")
		in := parts[:len(parts)-1]
		for depth, part := range in {
			if depth >= len(within) || strings.Join(within[:depth+1], ".") != strings.Join(in[:depth+1], ".") {
				fmt.Fprintf(&b, "%s%s:\n", strings.Repeat("  ", depth), part)
			}
		}
		within = in
		indent := strings.Repeat("  ", len(in))
		fmt.Fprintf(&b, "%s%s:%s\n", indent, parts[len(in)], l.yaml(k, indent))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// yaml returns the text after the colon.
func (l *Loaded) yaml(k Key, indent string) string {
	comment := "  # " + l.origins[k.Name]
	if k.fileOf != "" {
		return " " + strconv.Quote(l.files[k.Name]) + comment
	}
	v := k.value(&l.Config)
	if k.Secret && l.origins[k.Name] == k.fileKey().Name {
		return ` ""` + comment
	}
	if k.Secret && v.String() != "" {
		return " " + strconv.Quote(mask) + comment
	}
	switch value := v.Interface().(type) {
	case time.Duration:
		return " " + value.String() + comment
	case string:
		return " " + strconv.Quote(value) + comment
	case []string:
		return " " + quotedList(value) + comment
	case []Server:
		out := comment
		for _, s := range value {
			out += fmt.Sprintf("\n%s  - dsn: %s\n%s    databases: %s", indent, strconv.Quote(MaskDSN(s.DSN)), indent,
				strings.ReplaceAll(fmt.Sprint(s.Databases), " ", ", "))
		}
		if len(value) == 0 {
			out = " []" + out
		}
		return out
	}
	return " " + fmt.Sprint(v) + comment
}

func quotedList(list []string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = strconv.Quote(s)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// Reference writes the documentation of all keys as Markdown.
func Reference(w io.Writer) error {
	var b strings.Builder
	b.WriteString(referenceHead)
	top := section{}
	for _, s := range append([]section{top}, sections...) {
		if s != top {
			fmt.Fprintf(&b, "\n## %s\n\n%s\n", s.name, s.doc)
		}
		b.WriteString("\n| key | type | default | meaning |\n| --- | --- | --- | --- |\n")
		for _, k := range keys {
			if in, _, _ := cutLast(k.Name); in == s.name {
				fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", k.Name, k.shortType(), code(k.Default), k.Doc)
			}
		}
	}
	_, err := io.WriteString(w, strings.Replace(b.String(), "\n| key | type | default | meaning |\n| --- | --- | --- | --- |\n\n##", "\n##", 1))
	return err
}

const referenceHead = `# Configuration

<!-- Generated from internal/config by go generate ./internal/config. Do not edit. -->

All programs read the same configuration: a YAML file (` + "`--config FILE` or `PERCEPTOR_CONFIG`" + `), then environment
variables, then flags; a later source overrides an earlier one. The key ` + "`taskd.grpc_addr`" + ` is the variable
` + "`PERCEPTOR_TASKD_GRPC_ADDR`" + ` and the flag ` + "`--taskd.grpc-addr`" + `. There, commas separate the elements of lists. Durations need a
unit, such as ` + "`250ms`, `10s`, `72h` or `3d`" + `. An unknown key is an error.

` + "`--print-config`" + ` prints the effective configuration with the origin of each value; secrets are masked.

Secrets are not accepted as flags. Each has a neighbour with the suffix ` + "`_file`" + `, which names a file with the value; a server of
` + "`postgres.servers` has `dsn_file`" + ` instead of ` + "`dsn`" + `. A program does not start if every user may read a file with secrets, the
configuration file included, or write one.

` + "```yaml" + `
postgres:
  servers:
    - dsn: postgres://perceptor:secret@db-1:5432/perceptor?sslmode=verify-full&sslrootcert=/etc/perceptor/ca.pem
    - dsn: postgres://perceptor:secret@db-2:5432/perceptor?sslmode=verify-full&sslrootcert=/etc/perceptor/ca.pem
kafka:
  brokers: [kafka-1:9093, kafka-2:9093]
  tls: {enabled: true, ca_file: /etc/perceptor/ca.pem}
zookeeper:
  servers: [zk-1:2281, zk-2:2281, zk-3:2281]
  tls: {enabled: true, ca_file: /etc/perceptor/ca.pem}
  user: perceptor
  password: secret
taskd:
  tls: {cert_file: /etc/perceptor/taskd.pem, key_file: /etc/perceptor/taskd.key}
` + "```" + `
`

func cutLast(name string) (before, after string, found bool) {
	i := strings.LastIndexByte(name, '.')
	if i < 0 {
		return "", name, false
	}
	return name[:i], name[i+1:], true
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

// flagType returns the word for the key's value in the help of its flag.
func (k Key) flagType() string {
	if t, _, _ := strings.Cut(k.shortType(), ","); t != "bool" {
		return t
	}
	return "true|false"
}

func (k Key) shortType() string {
	if k.kind == durationType {
		return "duration"
	}
	switch k.kind.Kind() {
	case reflect.Int, reflect.Float64:
		return "number"
	case reflect.Bool:
		return "bool"
	case reflect.Slice:
		return "list"
	}
	if k.Secret {
		return "text, secret"
	}
	return "text"
}
