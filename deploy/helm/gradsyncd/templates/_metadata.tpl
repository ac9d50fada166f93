{{/* The metadata of a document of deploy/kubernetes, as one of this release. */}}
{{- define "gradsyncd.metadata" -}}
name: gradsyncd
namespace: {{ .Release.Namespace }}
labels:
  app.kubernetes.io/part-of: gradsync
  app.kubernetes.io/instance: {{ .Release.Name }}
  app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
  helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}
