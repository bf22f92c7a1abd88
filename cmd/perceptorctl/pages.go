package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/cli"
)

// pages are the flags of commands that list.
type pages struct {
	cmd   *cobra.Command
	limit int
	token string
}

const maxPage = 1000

func (p *pages) flags(cmd *cobra.Command) {
	p.cmd = cmd
	cmd.Flags().IntVar(&p.limit, "limit", 100, "most lines to list")
	cmd.Flags().StringVar(&p.token, "page-token", "", "continue after a page: nextPageToken of its JSON output")
}

// gather asks for pages until there are enough rows, and says when there may be more.
// It returns all rows, and the token of what comes after them.
// A limit below 1 is wrong usage: an empty list would say that there is nothing.
func gather[Page interface{ GetNextPageToken() string }, Row any](p *pages, rows func(Page) []Row, ask func(size int32, token string) (Page, error)) (all []Row, next string, err error) {
	if p.limit < 1 {
		return nil, "", cli.Usagef("--limit: %d is below 1", p.limit)
	}
	token := p.token
	bar := cli.NewProgress(p.cmd.ErrOrStderr(), "reading")
	defer bar.End()
	for len(all) < p.limit {
		page, err := ask(int32(min(p.limit-len(all), maxPage)), token)
		if err != nil {
			return nil, "", err
		}
		all, next = append(all, rows(page)...), page.GetNextPageToken()
		bar.Show(int64(len(all)), 0, "rows")
		if next == "" {
			break
		}
		token = next
	}
	bar.End()
	if next != "" {
		fmt.Fprintf(p.cmd.ErrOrStderr(), "there may be more: set a --limit above %d, or --page-token %s\n", p.limit, next)
	}
	return all, next, nil
}
