{{- define "perceptor.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- /* The release's name, with the chart's unless it is in there. Suffixes such as -dispatcher must still fit into 63. */ -}}
{{- define "perceptor.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "perceptor.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "perceptor.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "perceptor.selector" -}}
app.kubernetes.io/name: {{ include "perceptor.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "perceptor.labels" -}}
{{ include "perceptor.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "perceptor.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "perceptor.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "perceptor.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end }}

{{- define "perceptor.tlsSecret" -}}
{{- if .Values.tls.existingSecret -}}
{{- .Values.tls.existingSecret -}}
{{- else if .Values.tls.certManager.enabled -}}
{{- printf "%s-tls" (include "perceptor.fullname" .) -}}
{{- end -}}
{{- end }}

{{- define "perceptor.scheme" -}}
{{- if include "perceptor.tlsSecret" . }}HTTPS{{ else }}HTTP{{ end -}}
{{- end }}

{{- /* postgres.servers as the programs read it: each connection string is a file. */ -}}
{{- define "perceptor.servers" -}}
{{- range .Values.postgres.servers }}
- dsn_file: /etc/perceptor/postgres/{{ .key }}
  {{- with .databases }}
  databases: {{ toJson . }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* The configuration of all programs. .Values.config wins over what the other values say. */ -}}
{{- define "perceptor.config" -}}
{{- $c := dict -}}
{{- if .Values.insecure }}{{ $_ := set $c "insecure" true }}{{ end -}}
{{- $_ := set $c "postgres" (dict "servers" (include "perceptor.servers" . | fromYamlArray) "max_connections" (int .Values.postgres.maxConnections)) -}}
{{- $kafka := dict "brokers" .Values.kafka.brokers -}}
{{- with .Values.kafka.advertisedBrokers }}{{ $_ := set $kafka "advertised_brokers" . }}{{ end -}}
{{- if .Values.kafka.tls.enabled -}}
  {{- $tls := dict "enabled" true -}}
  {{- if .Values.ca.existingSecret }}{{ $_ := set $tls "ca_file" "/etc/perceptor/ca/ca.crt" }}{{ end -}}
  {{- $_ := set $kafka "tls" $tls -}}
{{- end -}}
{{- if .Values.kafka.sasl.existingSecret -}}
  {{- $sasl := dict "username" .Values.kafka.sasl.username "password_file" "/etc/perceptor/kafka/password" -}}
  {{- with .Values.kafka.sasl.mechanism }}{{ $_ := set $sasl "mechanism" . }}{{ end -}}
  {{- $_ := set $kafka "sasl" $sasl -}}
{{- end -}}
{{- if .Values.kafka.signing.existingSecret }}{{ $_ := set $kafka "signing_secret_file" "/etc/perceptor/signing/secret" }}{{ end -}}
{{- $_ := set $c "kafka" $kafka -}}
{{- if .Values.zookeeper.servers -}}
  {{- $zk := dict "servers" .Values.zookeeper.servers "root" .Values.zookeeper.root -}}
  {{- if .Values.zookeeper.tls.enabled -}}
    {{- $tls := dict "enabled" true -}}
    {{- if .Values.ca.existingSecret }}{{ $_ := set $tls "ca_file" "/etc/perceptor/ca/ca.crt" }}{{ end -}}
    {{- $_ := set $zk "tls" $tls -}}
  {{- end -}}
  {{- if .Values.zookeeper.existingSecret -}}
    {{- $_ := set $zk "user" .Values.zookeeper.user -}}
    {{- $_ := set $zk "password_file" "/etc/perceptor/zookeeper/password" -}}
  {{- end -}}
  {{- $_ := set $c "zookeeper" $zk -}}
{{- end -}}
{{- $taskd := dict "ops_addr" ":7072" "drain_delay" (printf "%ds" (int .Values.taskd.drainDelaySeconds)) "grace" (printf "%ds" (int .Values.taskd.graceSeconds)) -}}
{{- $ops := dict -}}
{{- if include "perceptor.tlsSecret" . -}}
  {{- $pair := dict "cert_file" "/etc/perceptor/tls/tls.crt" "key_file" "/etc/perceptor/tls/tls.key" -}}
  {{- $_ := set $taskd "tls" $pair -}}
  {{- $_ := set $ops "tls" $pair -}}
{{- end -}}
{{- if .Values.ops.existingSecret }}{{ $_ := set $ops "token_file" "/etc/perceptor/ops/token" }}{{ end -}}
{{- $_ := set $c "taskd" $taskd -}}
{{- if $ops }}{{ $_ := set $c "ops" $ops }}{{ end -}}
{{- /* The grace period of a pod follows from these values, so the configuration may not have others. */ -}}
{{- if dig "taskd" "grace" "" .Values.config }}{{ fail "config.taskd.grace: set taskd.graceSeconds instead" }}{{ end -}}
{{- if dig "taskd" "drain_delay" "" .Values.config }}{{ fail "config.taskd.drain_delay: set taskd.drainDelaySeconds instead" }}{{ end -}}
{{- if dig "dispatcher" "grace" "" .Values.config }}{{ fail "config.dispatcher.grace: set dispatcher.graceSeconds instead" }}{{ end -}}
{{- $_ := set $c "dispatcher" (dict "ops_addr" ":7073" "grace" (printf "%ds" (int .Values.dispatcher.graceSeconds))) -}}
{{- toYaml (mergeOverwrite $c (deepCopy .Values.config)) -}}
{{- end }}

{{- define "perceptor.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "perceptor.containerSecurity" -}}
image: {{ include "perceptor.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  privileged: false
  capabilities:
    drop: [ALL]
{{- end }}

{{- /* A volume of one secret: dict name, secret, and key and path to take one key of it. */ -}}
{{- define "perceptor.secretVolume" -}}
- name: {{ .name }}
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
    {{- if hasKey . "key" }}
    items:
      - key: {{ .key }}
        path: {{ .path }}
    {{- end }}
{{- end }}

{{- define "perceptor.volumes" -}}
- name: config
  configMap:
    name: {{ include "perceptor.fullname" . }}
    defaultMode: 0444
{{ include "perceptor.secretVolume" (dict "name" "postgres" "secret" .Values.postgres.existingSecret) }}
{{- with .Values.kafka.sasl }}{{ if .existingSecret }}
{{ include "perceptor.secretVolume" (dict "name" "kafka" "secret" .existingSecret "key" .key "path" "password") }}
{{- end }}{{ end }}
{{- with .Values.kafka.signing }}{{ if .existingSecret }}
{{ include "perceptor.secretVolume" (dict "name" "signing" "secret" .existingSecret "key" .key "path" "secret") }}
{{- end }}{{ end }}
{{- with .Values.zookeeper }}{{ if and .servers .existingSecret }}
{{ include "perceptor.secretVolume" (dict "name" "zookeeper" "secret" .existingSecret "key" .key "path" "password") }}
{{- end }}{{ end }}
{{- with .Values.ca }}{{ if .existingSecret }}
{{ include "perceptor.secretVolume" (dict "name" "ca" "secret" .existingSecret "key" .key "path" "ca.crt") }}
{{- end }}{{ end }}
{{- with include "perceptor.tlsSecret" . }}
{{ include "perceptor.secretVolume" (dict "name" "tls" "secret" .) }}
{{- end }}
{{- with .Values.ops }}{{ if .existingSecret }}
{{ include "perceptor.secretVolume" (dict "name" "ops" "secret" .existingSecret "key" .key "path" "token") }}
{{- end }}{{ end }}
{{- end }}

{{- define "perceptor.mounts" -}}
- {name: config, mountPath: /etc/perceptor/config, readOnly: true}
- {name: postgres, mountPath: /etc/perceptor/postgres, readOnly: true}
{{- if .Values.kafka.sasl.existingSecret }}
- {name: kafka, mountPath: /etc/perceptor/kafka, readOnly: true}
{{- end }}
{{- if .Values.kafka.signing.existingSecret }}
- {name: signing, mountPath: /etc/perceptor/signing, readOnly: true}
{{- end }}
{{- if and .Values.zookeeper.servers .Values.zookeeper.existingSecret }}
- {name: zookeeper, mountPath: /etc/perceptor/zookeeper, readOnly: true}
{{- end }}
{{- if .Values.ca.existingSecret }}
- {name: ca, mountPath: /etc/perceptor/ca, readOnly: true}
{{- end }}
{{- if include "perceptor.tlsSecret" . }}
- {name: tls, mountPath: /etc/perceptor/tls, readOnly: true}
{{- end }}
{{- if .Values.ops.existingSecret }}
- {name: ops, mountPath: /etc/perceptor/ops, readOnly: true}
{{- end }}
{{- end }}

{{- define "perceptor.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: ops, scheme: {{ include "perceptor.scheme" . }}}
  periodSeconds: 2
  failureThreshold: 30
livenessProbe:
  httpGet: {path: /healthz, port: ops, scheme: {{ include "perceptor.scheme" . }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: ops, scheme: {{ include "perceptor.scheme" . }}}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 2
{{- end }}

{{- /* Where pods of a component run: dict root, component, values. */ -}}
{{- define "perceptor.placement" -}}
{{- $labels := printf "%s\napp.kubernetes.io/component: %s" (include "perceptor.selector" .root) .component -}}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
affinity:
{{- if .values.affinity }}
  {{- toYaml .values.affinity | nindent 2 }}
{{- else }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- $labels | nindent 14 }}
{{- end }}
topologySpreadConstraints:
{{- if .values.topologySpreadConstraints }}
  {{- toYaml .values.topologySpreadConstraints | nindent 2 }}
{{- else }}
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- $labels | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
{{- end }}
{{- end }}

{{- /* What the last part of each address, host:port, is: the ports of a list, without repetition. */ -}}
{{- define "perceptor.ports" -}}
{{- $ports := list -}}
{{- range . }}{{ $ports = append $ports (regexFind "[0-9]+$" (toString .) | int) }}{{ end -}}
{{- $ports | uniq | toJson -}}
{{- end }}
