{{- define "gapless.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- define "gapless.labels" -}}
app.kubernetes.io/part-of: gapless
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}
