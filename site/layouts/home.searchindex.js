window.searchIndex = [
{{- range site.RegularPages }}
  {{- $headings := slice }}
  {{- range $id, $heading := .Fragments.HeadingsMap }}{{ $headings = $headings | append (dict "id" $id "text" (plainify $heading.Title)) }}{{ end }}
  {{ dict "title" (partial "title" .) "url" (strings.TrimPrefix "/" .RelPermalink) "text" .Plain "headings" $headings | jsonify }},
{{- end }}
];
