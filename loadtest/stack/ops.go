package stack

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// AskOps sends a GET request to the server for operators of a program and copies the answer to
// w. ctx bounds the call.
func (s *Stack) AskOps(ctx context.Context, name, path string, w io.Writer) error {
	p, err := s.program(name)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(p.readyURL, "/readyz")+path, nil)
	if err != nil {
		return err
	}
	// The client of probes limits the whole call, and a profile takes as long as it measures.
	resp, err := (&http.Client{Transport: p.asks.Transport}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s of %s: %s", path, name, resp.Status)
	}
	_, err = io.Copy(w, resp.Body)
	return err
}
