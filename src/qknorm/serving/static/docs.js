// The API as /openapi.json describes it, for people.

import { make } from "./panel.js";

let document_ = {};

function resolve(schema) {
  return schema?.$ref ? document_.components.schemas[schema.$ref.split("/").pop()] : schema;
}

// A type in words, such as "list of Sentence" or "text or null".
function kindOf(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(kindOf).join(" or ");
  if (schema.enum ?? schema.const) return [schema.enum ?? schema.const].flat().map((v) => `"${v}"`).join(" or ");
  if (schema.type === "array") return `list of ${kindOf(schema.items ?? {})}`;
  if (schema.type === "object" && schema.additionalProperties) return `names with ${kindOf(schema.additionalProperties)}`;
  return { integer: "whole number", boolean: "true or false", string: "text" }[schema.type] ?? schema.type ?? "anything";
}

function table(headings, rows) {
  const element = make("table");
  const head = element.createTHead().insertRow();
  for (const heading of headings) {
    const cell = make("th", null, heading);
    cell.scope = "col";
    head.append(cell);
  }
  const body = element.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    row.forEach((text, i) => line.insertCell().append(i === 0 ? make("code", null, text) : prose("span", null, text)));
  }
  const box = make("div", "scroll");
  box.append(element);
  return box;
}

// Text with `code` in it.
function prose(tag, name, text) {
  const element = make(tag, name);
  text.split("`").forEach((part, i) => element.append(i % 2 ? make("code", null, part) : part));
  return element;
}

function fields(schema, asked = false) {
  const rows = Object.entries(resolve(schema).properties ?? {}).map(([name, field]) => {
    const needed = asked && schema.required?.includes(name) ? "Needed." : "";
    const otherwise = (field.default ?? null) === null ? needed : `Otherwise ${field.default}.`;
    return [name, kindOf(field), [field.description ?? "", otherwise].filter(Boolean).join(" ")];
  });
  return table(["field", "type", "meaning"], rows);
}

// The parts of an answer, each with a heading, those inside others after them.
function answerParts(schema, seen = new Set()) {
  const name = schema?.$ref?.split("/").pop();
  if (!name || seen.has(name)) return [];
  seen.add(name);
  const inner = Object.values(resolve(schema).properties ?? {})
    .flatMap((field) => [field, field.items, ...(field.anyOf ?? [])])
    .flatMap((field) => answerParts(field, seen));
  return [make("h3", null, name), prose("p", "quiet", resolve(schema).description ?? ""), fields(resolve(schema)), ...inner];
}

function operation(path, method, about) {
  const element = make("section", "operation");
  const title = make("h2");
  title.append(make("code", null, `${method.toUpperCase()} ${path}`));
  element.append(title, prose("p", null, about.description ?? about.summary));
  const asked = about.requestBody?.content["application/json"].schema;
  if (asked) element.append(make("h3", null, "Request"), fields(asked, true));
  element.append(...answerParts(about.responses["200"]?.content?.["application/json"]?.schema));
  const refusals = Object.entries(about.responses).filter(([status]) => status !== "200");
  if (refusals.length) {
    element.append(make("h3", null, "When it is refused"));
    element.append(table(["status", "why"], refusals.map(([status, { description }]) => [status, description])));
  }
  return element;
}

document_ = await (await fetch("/openapi.json")).json();
document.getElementById("about").append(prose("span", null, document_.info.description));
document.getElementById("example").textContent =
  `curl -H 'Content-Type: application/json' -d '{"text": "a sentence", "nbest": 2}' ${location.origin}/translate`;
for (const [path, methods] of Object.entries(document_.paths)) {
  for (const [method, about] of Object.entries(methods)) {
    document.getElementById("operations").append(operation(path, method, about));
  }
}
