{{- define "tiltyard.name" -}}
{{- printf "%s-tiltyard" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "tiltyard.labels" -}}
app.kubernetes.io/name: tiltyard
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tiltyard.account" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tiltyard.name" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "tiltyard.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{- define "tiltyard.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "tiltyard.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* Where pods may run, and whose images they may pull. */ -}}
{{- define "tiltyard.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "tiltyard.scratch" -}}
- name: tmp
  emptyDir: {sizeLimit: {{ .Values.scratch.sizeLimit }}}
{{- end -}}

{{- define "tiltyard.environment" -}}
{{- range $name, $value := .Values.settings }}
- name: TILTYARD_{{ upper $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}
