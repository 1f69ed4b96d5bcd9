{{- define "timers.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* Labels of a component: dict "root" $ "component" "worker". Selectors never change, so they have no version. */}}
{{- define "timers.selector" -}}
app.kubernetes.io/name: timers
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Labels of the pods of a component: those of the values, and those by which pods are selected. */}}
{{- define "timers.podLabels" -}}
{{ merge (include "timers.selector" . | fromYaml) .root.Values.pods.labels | toYaml }}
{{- end }}

{{- define "timers.labels" -}}
{{ include "timers.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* dict "root" $ "image" .Values.image "path" "image" */}}
{{- define "timers.image" -}}
{{- $repository := required (printf "%s.repository is empty: name the image that you built and pushed (docs/kubernetes.md)" .path) .image.repository -}}
{{- if .image.digest }}{{ $repository }}@{{ .image.digest }}
{{- else }}{{ $repository }}:{{ .image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{/* What a server of a pod listens on. */}}
{{- define "timers.anyAddress" -}}
{{ eq .Values.ipFamily "IPv6" | ternary "::" "0.0.0.0" }}
{{- end }}

{{- define "timers.saslSecret" -}}
{{- if .Values.kafka.sasl.password }}{{ include "timers.name" . }}-sasl{{ else }}{{ .Values.kafka.sasl.secret }}{{ end }}
{{- end }}

{{- define "timers.caSecret" -}}
{{- if .Values.kafka.ca.certificate }}{{ include "timers.name" . }}-ca{{ else }}{{ .Values.kafka.ca.secret }}{{ end }}
{{- end }}

{{- define "timers.querySecret" -}}
{{- if .Values.query.value }}{{ include "timers.name" . }}-query{{ else }}{{ .Values.query.secret }}{{ end }}
{{- end }}

{{- define "timers.usesSasl" -}}
{{- if and (hasPrefix "SASL" .Values.kafka.securityProtocol) (include "timers.saslSecret" .) }}yes{{ end }}
{{- end }}

{{- define "timers.usesTls" -}}
{{- if hasSuffix "SSL" .Values.kafka.securityProtocol }}yes{{ end }}
{{- end }}

{{/* The settings that workers, console and engine share. */}}
{{- define "timers.settings" -}}
{{- $kafka := .Values.kafka }}
{{- $own := dict
  "TIMERS_BROKERS" (required "kafka.brokers is empty: name the brokers, such as kafka-bootstrap:9093" $kafka.brokers)
  "TIMERS_APP_ID" .Values.appId
  "TIMERS_PARTITIONS" (toString .Values.kafka.partitions)
  "TIMERS_REPLICATION" (toString .Values.kafka.replication)
  "TIMERS_SECURITY_PROTOCOL" $kafka.securityProtocol
  "TIMERS_STORE_MEMORY_MB" (toString .Values.worker.storeMemoryMb) }}
{{- if hasPrefix "SASL" $kafka.securityProtocol }}
{{- $_ := set $own "TIMERS_SASL_MECHANISM" $kafka.sasl.mechanism }}
{{- with $kafka.sasl.username }}{{ $_ := set $own "TIMERS_SASL_USERNAME" . }}{{ end }}
{{- end }}
{{- if include "timers.usesSasl" . }}{{ $_ := set $own "TIMERS_SASL_PASSWORD_FILE" (printf "/etc/timers/sasl/%s" $kafka.sasl.key) }}{{ end }}
{{- if include "timers.usesTls" . }}
{{- if include "timers.caSecret" . }}{{ $_ := set $own "TIMERS_SSL_CA_FILE" (printf "/etc/timers/ca/%s" $kafka.ca.key) }}{{ end }}
{{- if $kafka.clientCertificateSecret }}
{{- $names := and (eq .Values.provision.by "strimzi") (eq $kafka.securityProtocol "SSL") | ternary (list "user.crt" "user.key") (list "tls.crt" "tls.key") }}
{{- $_ := set $own "TIMERS_SSL_CERT_FILE" (printf "/etc/timers/client/%s" ($kafka.clientCertificateKeys.certificate | default (first $names))) }}
{{- $_ := set $own "TIMERS_SSL_KEY_FILE" (printf "/etc/timers/client/%s" ($kafka.clientCertificateKeys.key | default (last $names))) }}
{{- end }}
{{- end }}
{{- if include "timers.querySecret" . }}{{ $_ := set $own "TIMERS_QUERY_SECRET_FILE" (printf "/etc/timers/query/%s" .Values.query.key) }}{{ end }}
{{- mergeOverwrite $own (deepCopy .Values.settings) | toYaml }}
{{- end }}

{{/* The user by whom workers, console and engine log in with a password; empty: by a certificate or a token. */}}
{{- define "timers.user" -}}
{{ get (include "timers.settings" . | fromYaml) "TIMERS_SASL_USERNAME" }}
{{- end }}

{{/* A pod gets new settings, and secrets that the chart makes, by a new pod. Who may read pods but no secrets must not be able to
try passwords: four digits name too many of them. */}}
{{- define "timers.checksum" -}}
checksum/settings: {{ include "timers.settings" . | sha256sum }}
checksum/secrets: {{ list .Values.kafka.sasl.password .Values.kafka.ca.certificate .Values.query.value | toYaml | sha256sum | trunc 4 | quote }}
{{- end }}

{{- define "timers.secretMounts" -}}
{{- if include "timers.usesSasl" . }}
- {name: sasl, mountPath: /etc/timers/sasl, readOnly: true}
{{- end }}
{{- if include "timers.usesTls" . }}
{{- if include "timers.caSecret" . }}
- {name: ca, mountPath: /etc/timers/ca, readOnly: true}
{{- end }}
{{- if .Values.kafka.clientCertificateSecret }}
- {name: client, mountPath: /etc/timers/client, readOnly: true}
{{- end }}
{{- end }}
{{- if include "timers.querySecret" . }}
- {name: query, mountPath: /etc/timers/query, readOnly: true}
{{- end }}
{{- with .Values.pods.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Readable by the group of the pod (fsGroup), not by others. */}}
{{- define "timers.secretVolumes" -}}
{{- if include "timers.usesSasl" . }}
- {name: sasl, secret: {secretName: {{ include "timers.saslSecret" . }}, defaultMode: 0440}}
{{- end }}
{{- if include "timers.usesTls" . }}
{{- if include "timers.caSecret" . }}
- {name: ca, secret: {secretName: {{ include "timers.caSecret" . }}, defaultMode: 0440}}
{{- end }}
{{- with .Values.kafka.clientCertificateSecret }}
- {name: client, secret: {secretName: {{ . }}, defaultMode: 0440}}
{{- end }}
{{- end }}
{{- if include "timers.querySecret" . }}
- {name: query, secret: {secretName: {{ include "timers.querySecret" . }}, defaultMode: 0440}}
{{- end }}
{{- with .Values.pods.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "timers.podSecurity" -}}
{{ toYaml .Values.pods.securityContext }}
{{- end }}

{{- define "timers.serviceAccount" -}}
{{- with .Values.pods.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- end }}

{{- define "timers.extraEnv" -}}
{{- with .Values.pods.extraEnv }}{{ toYaml . }}{{ end }}
{{- end }}

{{- define "timers.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Where pods run: dict "root" $ "own" .Values.worker, whose values win over those of all pods. */}}
{{- define "timers.placement" -}}
{{- with .own.nodeSelector | default .root.Values.pods.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .own.tolerations | default .root.Values.pods.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .own.affinity | default .root.Values.pods.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .own.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- define "timers.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* What fires, as a label. */}}
{{- define "timers.engineComponent" -}}
{{- if eq .Values.engine "spark" }}spark-driver{{ else }}worker{{ end }}
{{- end }}
