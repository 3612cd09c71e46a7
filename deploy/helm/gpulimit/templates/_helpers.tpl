{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{- define "gpulimit.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- define "gpulimit.labels" -}}
app.kubernetes.io/part-of: gpulimit
app.kubernetes.io/instance: {{ .Release.Name }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
