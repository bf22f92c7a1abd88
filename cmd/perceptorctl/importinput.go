package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/transfer"
)

// Limits of what is stored with an import.
const (
	maxOptions     = 16 << 10
	maxDescription = 1000
	// maxStoredFiles bounds the files that are stored by name; a digest stands for more.
	maxStoredFiles = 8 << 10
)

// setInput sets what is read: files, or a query.
func (o *importOptions) setInput(args []string) (err error) {
	if o.From != "" {
		return o.setScheduler(args)
	}
	if o.dsn != "" {
		if len(args) != 1 {
			return cli.Usagef("--from-sql needs one argument, the query, and not %d", len(args))
		}
		o.Query = args[0]
		return nil
	}
	o.Patterns = args
	if o.Files, err = transfer.Find(args); err != nil {
		return cli.Usagef("%v", err)
	}
	if o.stdin() && len(o.Files) > 1 {
		return cli.Usagef("standard input (-) cannot be imported together with files")
	}
	if o.Format == "" {
		for _, f := range o.Files {
			if f.Name == transfer.Stdin {
				return cli.Usagef("--format is needed for standard input")
			}
			if _, err := transfer.FormatOf(f.Name); err != nil {
				return cli.Usagef("--format: %v", err)
			}
		}
	}
	o.Folder, err = os.Getwd()
	return err
}

// stdin reports whether standard input is imported.
func (o *importOptions) stdin() bool {
	return slices.ContainsFunc(o.Files, func(f transfer.File) bool { return f.Name == transfer.Stdin })
}

// files returns the options of the files' sources.
func (o *importOptions) files(cmd *cobra.Command, progress func(int64)) (transfer.Options, error) {
	m, err := o.mapping()
	return transfer.Options{Mapping: m, Format: o.Format, Dialect: o.Dialect, Stdin: &endingReader{ctx: cmd.Context(), from: cmd.InOrStdin()}, Progress: progress}, err
}

// open returns the lines to import.
func (o *importOptions) open(ctx context.Context, cmd *cobra.Command, progress func(int64)) (transfer.Source, error) {
	t, err := o.files(cmd, progress)
	if err != nil {
		return nil, err
	}
	if o.From != "" {
		return o.openSchedules(ctx, t.Defaults)
	}
	if o.Query != "" {
		return transfer.OpenSQL(ctx, o.dsn, o.Query, t.Mapping)
	}
	return transfer.Open(o.Files, t), nil
}

// encode returns the stored form.
func (o *importOptions) encode() (string, error) {
	stored := *o
	if text, err := json.Marshal(stored.Files); err != nil {
		return "", err
	} else if len(text) > maxStoredFiles {
		stored.Files, stored.Digest = nil, digestOf(o.Files)
	}
	text, err := json.Marshal(stored)
	if err != nil {
		return "", err
	}
	if len(text) > maxOptions {
		return "", cli.Usagef("the options have %d bytes, and at most %d can be stored with the import: shorten the query, or name files by a pattern", len(text), maxOptions)
	}
	return string(text), nil
}

// digestOf returns a digest of names, sizes and times of files.
func digestOf(files []transfer.File) string {
	h := sha256.New()
	for _, f := range files {
		fmt.Fprintf(h, "%q %d %d\n", f.Name, f.Size, f.Changed.UnixNano()) // a hash takes all
	}
	return hex.EncodeToString(h.Sum(nil))
}

// decodeOptions reads the stored form.
func decodeOptions(text string) (*importOptions, error) {
	o := &importOptions{}
	if err := json.Unmarshal([]byte(text), o); err != nil || o.Version != optionsVersion {
		return nil, &cli.Error{Code: cli.Failure, Err: fmt.Errorf("the import was not made by this version of perceptorctl, which cannot read its options")}
	}
	return o, nil
}

// find finds the files of an import that is resumed: those that are named now, or those that it had. It refuses
// those that have changed.
func (o *importOptions) find(args []string) error {
	if o.Query != "" {
		if len(args) > 0 {
			return cli.Usagef("the import is from a query, so no files can be given")
		}
		return nil
	}
	stored := o.Files
	if len(args) == 0 {
		args = o.Patterns
		if len(stored) > 0 {
			args = nil
			for _, f := range stored {
				args = append(args, f.Name)
			}
		}
		for i, name := range args {
			if name != transfer.Stdin && !filepath.IsAbs(name) {
				args[i] = filepath.Join(o.Folder, name)
			}
		}
	}
	found, err := transfer.Find(args)
	if err != nil {
		return cli.Usagef("%v; name the files again if they have moved", err)
	}
	return o.compare(stored, found)
}

// compare takes over where files were found, if they are the same as when the import began.
func (o *importOptions) compare(stored, found []transfer.File) error {
	if o.Digest != "" {
		for i := range found { // the digest has the names as they were given
			if name, err := filepath.Rel(o.Folder, found[i].Name); err == nil && !strings.HasPrefix(name, "..") && !filepath.IsAbs(o.Patterns[0]) {
				found[i].Path, found[i].Name = found[i].Name, name
			}
		}
		if digestOf(found) != o.Digest {
			return changed("the files are not those with which the import began")
		}
		o.Files = found
		return nil
	}
	if len(stored) != len(found) {
		return changed(fmt.Sprintf("the import has %d files, and %d are there", len(stored), len(found)))
	}
	for i, f := range found {
		stored[i].Path = f.Name
		if f.Name == transfer.Stdin {
			stored[i].Path = ""
		}
		if err := stored[i].Same(); err != nil {
			return changed(err.Error())
		}
	}
	o.Files = stored
	return nil
}

// changed is an error about input that is not the same any more.
func changed(what string) error {
	return &cli.Error{Code: cli.Conflict, Err: fmt.Errorf("%s; an import can only be resumed with the same input", what), Hint: "perceptorctl import rollback removes what was stored; then import anew"}
}

// description says in words what is imported.
func (o *importOptions) description() string {
	text := o.Query
	if o.From != "" {
		text = "the schedules of " + o.From
	}
	if text == "" {
		var names []string
		for _, f := range o.Files {
			names = append(names, f.Name)
		}
		text = strings.Join(names, " ")
		if len(text) > maxDescription && len(o.Patterns) > 0 {
			text = strings.Join(o.Patterns, " ")
		}
	}
	return strings.ToValidUTF8(text[:min(len(text), maxDescription)], "")
}
