package millpond;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.catalyst.analysis.UnresolvedFunction;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.NamedLambdaVariable;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.optimizer.CollapseProject$;
import org.apache.spark.sql.catalyst.plans.QueryPlan;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Expand;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.trees.BinaryLike;
import org.apache.spark.sql.catalyst.trees.Origin;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.trees.UnaryLike;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.util.Utils;
import py4j.Gateway;
import scala.Option;
import scala.Product;
import scala.collection.IterableOnce;
import scala.collection.Iterator;
import scala.collection.Seq;
import scala.collection.immutable.Nil$;

/** Reads trees of Catalyst in one call, in place of a call for each node and value. */
public class CatalystTrees {
    private static final String FIELD = "\u0001";
    private static final String NODE = "\u0002";
    private static final int MOST_NODES = 16384;

    private final Gateway gateway;
    private final StringBuilder found = new StringBuilder();
    private final Map places = new HashMap();
    private final Map rendered = new IdentityHashMap();
    private final StringBuilder strings = new StringBuilder();
    private int expressions = 0;

    private CatalystTrees(Gateway gateway) {
        this.gateway = gateway;
    }

    /**
     * Registers all nodes below a node, or the elements of a sequence with all nodes below them, and describes each of
     * them on a line, parents first. The expressions of a plan follow its children.
     *
     * A line holds the id in the gateway, class, number of children and expressions, expression id, SQL type, start and
     * end in the text of the query, name, parts of a qualified name, metadata, and what else `flags` lists; "" for what
     * a node lacks. Texts are places in the list of strings after the lines, each with its length.
     *
     * @return null if an element is not a node of a tree, or if there are more than 16,384 nodes: a tree may contain a
     *     node many times, and so have more nodes than memory can hold
     * @param root a node, which is not registered again, or a sequence
     * @param released ids of objects that are not used any more, each followed by a space
     */
    public static String nodes(Gateway gateway, Object root, String released) {
        release(gateway, released);
        CatalystTrees trees = new CatalystTrees(gateway);
        if (root instanceof TreeNode) {
            if (count((TreeNode) root, 0) > MOST_NODES) {
                return null;
            }
            trees.add((TreeNode) root, "");
        } else if (root instanceof Seq && count((Seq) root, 0) <= MOST_NODES) {
            trees.add((Seq) root);
        } else {
            return null;
        }
        return trees.found.append(NODE).append(trees.strings).toString();
    }

    /**
     * The fields of an expression and of all below it, as JSON without control characters. After NODE follow the
     * columns and Python functions in it, described as by `nodes`.
     *
     * An expression is an object: `kind`, `type` and `parts`, a list of fields with their names; also `node`, the place
     * of a column or function in the list of those, `sql` of a literal, and `id` of a lambda variable. A collection is
     * a list, and another object `{"text": …}`.
     *
     * @return null if there are more than 16,384 expressions in it
     * @param omitted the names of fields to leave out, each between spaces
     */
    public static String fields(Gateway gateway, Expression root, String omitted, String released) {
        release(gateway, released);
        CatalystTrees trees = new CatalystTrees(gateway);
        List named = new ArrayList();
        if (!trees.addFields(root, omitted, named)) {
            return null;
        }
        trees.found.append(NODE);
        for (int i = 0; i < named.size(); i++) {
            trees.add((TreeNode) named.get(i), gateway.putNewObject(named.get(i)));
        }
        return trees.found.append(NODE).append(trees.strings).toString();
    }

    /** Adds the fields of an expression; false if there are too many. */
    private boolean addFields(Expression node, String omitted, List named) {
        expressions++;
        found.append("{\"kind\":");
        addText(Utils.getFormattedClassName(node));
        found.append(",\"type\":");
        addText(node.dataType().catalogString());
        if (node instanceof AttributeReference || node instanceof PythonUDF) {
            found.append(",\"node\":").append(named.size());
            named.add(node);
        } else if (node instanceof Literal) {
            found.append(",\"sql\":");
            addText(node.sql());
        } else if (node instanceof NamedLambdaVariable) {
            found.append(",\"id\":").append(((NamedLambdaVariable) node).exprId().id());
        }
        found.append(",\"parts\":[");
        String comma = "";
        if (node instanceof PythonUDF) {
            for (Iterator each = node.children().iterator(); each.hasNext(); comma = ",") {
                found.append(comma).append("[\"\",");
                addPart(each.next(), omitted, named);
                found.append("]");
            }
        } else if (!(node instanceof AttributeReference || node instanceof Literal)) {
            for (int i = 0; i < node.productArity() && expressions <= MOST_NODES; i++) {
                String name = node.productElementName(i);
                if (!omitted.contains(" " + name + " ")) {
                    found.append(comma).append("[");
                    addText(name);
                    found.append(",");
                    addPart(node.productElement(i), omitted, named);
                    found.append("]");
                    comma = ",";
                }
            }
        }
        found.append("]}");
        return expressions <= MOST_NODES;
    }

    private void addPart(Object part, String omitted, List named) {
        if (part == null || part instanceof Boolean || isNumber(part)) {
            found.append(part); // NaN and Infinity as Python's JSON has them
        } else if (part instanceof String || part instanceof Character) {
            addText(part.toString());
        } else if (part instanceof Expression) {
            addFields((Expression) part, omitted, named);
        } else if (part instanceof IterableOnce) {
            addParts(((IterableOnce) part).iterator(), omitted, named);
        } else if (part.getClass().getName().startsWith("scala.Tuple")) {
            addParts(((Product) part).productIterator(), omitted, named);
        } else {
            found.append("{\"text\":");
            addText(part.toString());
            found.append("}");
        }
    }

    private static boolean isNumber(Object part) {
        return part instanceof Integer || part instanceof Long || part instanceof Short || part instanceof Byte
            || part instanceof Double || part instanceof Float;
    }

    private void addParts(Iterator parts, String omitted, List named) {
        found.append("[");
        for (String comma = ""; parts.hasNext() && expressions <= MOST_NODES; comma = ",") {
            found.append(comma);
            addPart(parts.next(), omitted, named);
        }
        found.append("]");
    }

    private void addText(String text) {
        found.append('"');
        for (int i = 0; i < text.length(); i++) {
            char one = text.charAt(i);
            if (one == '"' || one == '\\') {
                found.append('\\').append(one);
            } else if (one < ' ') {
                found.append(String.format("\\u%04x", new Object[] {Integer.valueOf(one)}));
            } else {
                found.append(one);
            }
        }
        found.append('"');
    }

    /** Describes the attributes that an expression or a plan reads, as `nodes` does. */
    public static String references(Gateway gateway, TreeNode root, String released) {
        AttributeSet read = root instanceof Expression ? ((Expression) root).references()
            : ((QueryPlan) root).references();
        return nodes(gateway, read.toSeq(), released);
    }

    /** An expression with attributes replaced by their definitions: aliases, by their ids as in `sequence`. */
    public static Object substitute(Gateway gateway, Expression expression, String ids) {
        scala.collection.immutable.Seq nothing = Nil$.MODULE$;
        List whole = new ArrayList();
        whole.add(new Alias(expression, "e", NamedExpression$.MODULE$.newExprId(), nothing, Option.empty(), nothing));
        scala.collection.immutable.Seq list = PythonUtils.toSeq(whole);
        list = CollapseProject$.MODULE$.buildCleanedProjectList(list, sequence(gateway, ids));
        return ((Alias) list.apply(0)).child();
    }

    /** A sequence of objects that are registered in the gateway; `ids` has theirs, each followed by a space. */
    public static scala.collection.immutable.Seq sequence(Gateway gateway, String ids) {
        String[] named = ids.split(" ");
        List elements = new ArrayList(named.length);
        for (int i = 0; i < named.length; i++) {
            elements.add(gateway.getObject(named[i]));
        }
        return PythonUtils.toSeq(elements);
    }

    /** Forgets objects that are not used any more; `released` has their ids, each followed by a space. */
    public static void release(Gateway gateway, String released) {
        if (!released.isEmpty()) {
            String[] ids = released.split(" ");
            for (int i = 0; i < ids.length; i++) {
                gateway.deleteObject(ids[i]);
            }
        }
    }

    /** The number of nodes, counted from `nodes` on; a number above the limit if there are more, or other elements. */
    private static int count(Seq elements, int nodes) {
        for (Iterator each = elements.iterator(); each.hasNext() && nodes <= MOST_NODES;) {
            Object element = each.next();
            nodes = element instanceof TreeNode ? count((TreeNode) element, nodes) : MOST_NODES + 1;
        }
        return nodes;
    }

    private static int count(TreeNode node, int nodes) {
        return count(expressions(node), count(node.children(), nodes + 1));
    }

    /** The expressions of a plan; empty for an expression. */
    private static Seq expressions(TreeNode node) {
        return node instanceof LogicalPlan ? ((LogicalPlan) node).expressions() : (Seq) Nil$.MODULE$;
    }

    private void add(Seq elements) {
        for (Iterator each = elements.iterator(); each.hasNext();) {
            Object node = each.next();
            add((TreeNode) node, gateway.putNewObject(node));
        }
    }

    private void add(TreeNode node, String target) {
        Seq children = node.children();
        Seq expressions = expressions(node);
        found.append(target).append(FIELD).append(Utils.getFormattedClassName(node)).append(FIELD);
        found.append(children.size()).append(FIELD).append(expressions.size()).append(FIELD);
        found.append(identity(node)).append(FIELD).append(type(node)).append(FIELD);
        addSpan(node.origin());
        addNames(node);
        found.append(FIELD).append(flags(node)).append(NODE);
        add(children);
        add(expressions);
    }

    private void addSpan(Origin origin) {
        Option text = origin.sqlText();
        if (text.isDefined() && origin.startIndex().isDefined() && origin.stopIndex().isDefined()) {
            found.append(origin.startIndex().get()).append(FIELD).append(origin.stopIndex().get()).append(FIELD);
            found.append(place((String) text.get()));
        } else {
            found.append(FIELD).append(FIELD);
        }
        found.append(FIELD);
    }

    private void addNames(TreeNode node) {
        if (node instanceof Alias || node instanceof AttributeReference) {
            found.append(place(((NamedExpression) node).name()));
        }
        found.append(FIELD);
        Seq parts = node instanceof UnresolvedFunction ? ((UnresolvedFunction) node).nameParts()
            : node instanceof UnresolvedRelation ? ((UnresolvedRelation) node).multipartIdentifier()
            : (Seq) Nil$.MODULE$;
        for (Iterator each = parts.iterator(); each.hasNext();) {
            found.append(place((String) each.next())).append(" ");
        }
        found.append(FIELD);
        if (node instanceof AttributeReference) {
            Metadata metadata = ((AttributeReference) node).metadata();
            Object text = rendered.get(metadata);
            if (text == null) {
                text = metadata.json();
                rendered.put(metadata, text);
            }
            found.append(place((String) text));
        }
    }

    private String place(String text) {
        Object known = places.get(text);
        if (known == null) {
            known = String.valueOf(places.size());
            places.put(text, known);
            strings.append(text.codePointCount(0, text.length())).append(" ").append(text);
        }
        return (String) known;
    }

    /** "c" if the node has a method `child`, "b" if it has `left` and `right`, "s" or "t" for a plan of a stream or not. */
    private static String flags(TreeNode node) {
        String flags = node instanceof UnaryLike ? "c" : node instanceof BinaryLike ? "b" : "";
        return node instanceof LogicalPlan ? flags + (((LogicalPlan) node).isStreaming() ? "s" : "t") : flags;
    }

    private static String identity(Object node) {
        if (node instanceof AttributeReference) {
            return String.valueOf(((AttributeReference) node).exprId().id());
        }
        return node instanceof Alias ? String.valueOf(((Alias) node).exprId().id()) : "";
    }

    /** The type as text; "" for a type with names, which may hold any character, and for none. */
    private static String type(TreeNode node) {
        if (!(node instanceof Expression) || !((Expression) node).resolved()) {
            return "";
        }
        try {
            String text = ((Expression) node).dataType().catalogString();
            return text.contains("struct<") ? "" : text;
        } catch (Exception error) { // a part that has no type, such as the frame of a window
            return "";
        }
    }

    /**
     * The number of parts of a plan's largest node and of its largest column, and the name of that column, when each
     * column is replaced by its definition.
     */
    public static String inlined(QueryPlan plan) {
        List nodes = new ArrayList();
        list(plan, nodes);
        Map sizes = new HashMap();
        double total = 0;
        double largest = 0;
        String name = "an expression";
        for (int i = nodes.size() - 1; i >= 0; i--) { // children, which define columns, come after their parents
            QueryPlan node = (QueryPlan) nodes.get(i);
            Seq trees = node instanceof Expand ? node.output() : node.expressions();
            double own = 0;
            for (Iterator each = trees.iterator(); each.hasNext();) {
                Expression tree = (Expression) each.next();
                double parts = size(tree, sizes);
                own += parts;
                if (tree instanceof Alias && parts > largest) {
                    largest = parts;
                    name = ((Alias) tree).name();
                }
            }
            if (node instanceof Aggregate) { // its results are values, also for the nodes above it
                sizes.clear();
                for (Iterator each = trees.iterator(); each.hasNext();) {
                    size((Expression) each.next(), sizes);
                }
            }
            total = Math.max(total, own);
        }
        return total + FIELD + largest + FIELD + name;
    }

    private static void list(TreeNode node, List found) {
        found.add(node);
        for (Iterator each = node.children().iterator(); each.hasNext();) {
            list((TreeNode) each.next(), found);
        }
    }

    /** The parts of an expression; keeps them as the size of the column that it defines. */
    private static double size(Expression tree, Map sizes) {
        List nodes = new ArrayList();
        list(tree, nodes);
        double parts = 0;
        for (int i = 0; i < nodes.size(); i++) {
            Object node = nodes.get(i);
            Object known = node instanceof AttributeReference ? sizes.get(identity(node)) : null;
            parts += known == null ? 1 : ((Double) known).doubleValue();
        }
        parts = Math.min(parts, 1e300);
        if (tree instanceof Alias) {
            sizes.put(identity(tree), Double.valueOf(parts));
        }
        return parts;
    }
}
