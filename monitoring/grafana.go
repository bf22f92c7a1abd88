package monitoring

import "encoding/json"

// columns is the width of a dashboard; panelHeight and statHeight are in Grafana's rows.
const (
	columns      = 24
	defaultWidth = 8
	panelHeight  = 8
	statHeight   = 4
)

type object map[string]any

// source is the data source of all queries: the one that is chosen at the top.
var source = object{"type": "prometheus", "uid": "${datasource}"}

// JSON returns the dashboard in the format that Grafana 9 and later import.
func (d *Dashboard) JSON() ([]byte, error) {
	text, err := json.MarshalIndent(object{
		"uid": d.UID, "title": d.Title, "description": d.Description, "tags": []string{"perceptor"},
		"schemaVersion": 37, "editable": true, "graphTooltip": 1, "refresh": "30s",
		"time":       object{"from": "now-1h", "to": "now"},
		"templating": object{"list": d.variables()},
		"panels":     d.panels(),
		"links": []object{{
			"type": "dashboards", "tags": []string{"perceptor"}, "title": "Perceptor", "asDropdown": true, "includeVars": true, "keepTime": true,
		}},
	}, "", "  ")
	return append(text, '\n'), err
}

func (d *Dashboard) variables() []object {
	out := []object{{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}}
	for _, v := range d.Variables {
		query := "label_values(" + v.Metric + ", " + v.Name + ")"
		out = append(out, object{
			"name": v.Name, "label": v.Label, "type": "query", "datasource": source, "definition": query,
			"query": object{"query": query, "refId": v.Name}, "refresh": 2, "sort": 1,
			"multi": v.Name == "instance", "includeAll": v.Name == "instance",
		})
	}
	return out
}

// panels lays the panels out from left to right, row by row.
func (d *Dashboard) panels() (out []object) {
	id, y := 0, 0
	place := func(x, w, h int) object { return object{"x": x, "y": y, "w": w, "h": h} }
	for _, row := range d.Rows {
		id++
		out = append(out, object{"id": id, "type": "row", "title": row.Title, "collapsed": false, "gridPos": place(0, columns, 1), "panels": []object{}})
		y++
		x, height := 0, 0
		for i := range row.Panels {
			p := &row.Panels[i]
			if x+p.width() > columns {
				x, y = 0, y+height
			}
			id++
			height = p.height()
			out = append(out, p.json(id, place(x, p.width(), height)))
			x += p.width()
		}
		y += height
	}
	return out
}

func (p *Panel) width() int {
	if p.Width == 0 {
		return defaultWidth
	}
	return p.Width
}

func (p *Panel) height() int {
	if p.Kind == stat {
		return statHeight
	}
	return panelHeight
}

func (p *Panel) json(id int, place object) object {
	kind, options := "timeseries", object{
		"legend":  object{"displayMode": "list", "placement": "bottom", "showLegend": true},
		"tooltip": object{"mode": "multi", "sort": "desc"},
	}
	if p.Kind == stat {
		kind, options = "stat", object{
			"reduceOptions": object{"calcs": []string{"lastNotNull"}}, "colorMode": "none", "graphMode": "area",
		}
	}
	var targets []object
	for i, q := range p.Queries {
		targets = append(targets, object{"refId": string(rune('A' + i)), "datasource": source, "expr": q.Expr, "legendFormat": q.Legend})
	}
	return object{
		"id": id, "type": kind, "title": p.Title, "description": p.Description, "datasource": source, "gridPos": place, "targets": targets, "options": options,
		"fieldConfig": object{"defaults": object{"unit": p.Unit, "min": 0}, "overrides": []object{}},
	}
}
