package monitoring

import "strings"

// Queries returns every expression of a rule or a panel by where it is used. Of an alert it is
// what the alert watches, which has values also while nothing is wrong.
func Queries() map[string]string {
	out := map[string]string{}
	for _, r := range Records() {
		out[r.Name] = r.Expr
	}
	for _, a := range Alerts() {
		out[a.Name] = a.Value
	}
	for _, d := range Dashboards() {
		for _, row := range d.Rows {
			for i := range row.Panels {
				for _, q := range row.Panels[i].Queries {
					out[strings.Join([]string{d.UID, row.Title, row.Panels[i].Title, q.Legend}, " / ")] = q.Expr
				}
			}
		}
	}
	return out
}
