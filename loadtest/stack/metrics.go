package stack

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// Metrics reads what a program of the stack tells Prometheus: values by name with
// labels, as they are written.
func (s *Stack) Metrics(ctx context.Context, name string) (map[string]float64, error) {
	part, err := s.Part(name)
	if err != nil {
		return nil, err
	}
	p, ok := part.Server.(*program)
	if !ok {
		return nil, fmt.Errorf("%s has no metrics of ours", part.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(p.readyURL, "/readyz")+"/metrics", nil)
	if err != nil {
		return nil, fmt.Errorf("read the metrics of %s: %w", part.Name, err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("read the metrics of %s: %w", part.Name, err)
	}
	defer resp.Body.Close()
	values := map[string]float64{}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		line := lines.Text()
		if i := strings.LastIndexByte(line, ' '); i > 0 && line[0] != '#' {
			if v, err := strconv.ParseFloat(line[i+1:], 64); err == nil {
				values[line[:i]] = v
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the metrics of %s: %w", part.Name, err)
	}
	return values, nil
}
