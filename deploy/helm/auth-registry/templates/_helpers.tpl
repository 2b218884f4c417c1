{{- define "auth.name" -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* Selector labels of pods. Takes a list: root, component. */}}
{{- define "auth.selector" -}}
app.kubernetes.io/name: {{ (index . 0).Chart.Name }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "auth.labels" -}}
{{ include "auth.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
{{- end -}}

{{- define "auth.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* Common settings of all pods. */}}
{{- define "auth.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: { type: RuntimeDefault }
{{- end -}}

{{- define "auth.container" -}}
image: {{ include "auth.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end -}}

{{/* Takes a list: root, component. */}}
{{- define "auth.spread" -}}
topologySpreadConstraints:
  {{- range tuple "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{ include "auth.selector" $ | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end -}}

{{/* Settings as environment; later maps win. Takes a list of maps. */}}
{{- define "auth.env" -}}
{{- $all := dict -}}
{{- range . }}{{ $all = mergeOverwrite $all (deepCopy .) }}{{ end -}}
{{- range $name, $value := $all }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{/* Annotations for Prometheus. Takes whether TLS is set. */}}
{{- define "auth.scraped" -}}
prometheus.io/scrape: "true"
prometheus.io/port: "9090"
prometheus.io/scheme: {{ if . }}https{{ else }}http{{ end }}
{{- end -}}

{{/* A probe of the metrics port. Takes a list: path, whether TLS is set. */}}
{{- define "auth.probe" -}}
{ path: {{ index . 0 }}, port: metrics, scheme: {{ if index . 1 }}HTTPS{{ else }}HTTP{{ end }} }
{{- end -}}
