{{/* Environment variables of driver and executors, as items of `env`. */}}
{{- define "millpond.variables" -}}
- name: MILLPOND_CACHE_BYTES
  value: {{ .Values.cacheBytes | int64 | quote }}
{{- range $name, $value := .Values.environment }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{/* The secret whose keys are environment variables, as items of `envFrom`. */}}
{{- define "millpond.secrets" -}}
{{- with .Values.secrets.environment -}}
- secretRef:
    name: {{ . }}
{{- end }}
{{- end -}}

{{/* Pods meet the Pod Security Standard `restricted`. */}}
{{- define "millpond.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "millpond.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
{{- end -}}
